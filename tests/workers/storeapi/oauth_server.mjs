// A third-party token server: oidc-provider, with two clients, one for each style of credentials.
// node oauth_server.mjs FOLDER_WITH_NODE_MODULES PORT
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [folder, port] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${folder}/`));
const { default: Provider } = await import(pathToFileURL(require.resolve('oidc-provider')));

const client = (client_id, token_endpoint_auth_method) => ({
  client_id,
  client_secret: 's&cret:+% ~',
  token_endpoint_auth_method,
  grant_types: ['client_credentials'],
  redirect_uris: [],
  response_types: [],
});

const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [client('the app', 'client_secret_basic'), client('body app', 'client_secret_post')],
  scopes: ['read', 'write'],
  features: {
    clientCredentials: { enabled: true },
    introspection: { enabled: true },
    devInteractions: { enabled: false },
  },
  ttl: { ClientCredentials: 120 },
});
provider.listen(Number(port), '127.0.0.1', () => console.log('ready'));
