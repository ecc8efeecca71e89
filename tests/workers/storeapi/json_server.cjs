// json-server with one collection. `node json_server.cjs MODULES PORT COUNT`; PUT /control sets the envelope and the fault.
// json-server itself pages (_page, _start, Link, X-Total-Count); only its answers are wrapped, and damaged on request.
const [modules, port, count] = process.argv.slice(2);
const jsonServer = require(`${modules}/node_modules/json-server`);
const products = Array.from({ length: Number(count) }, (_, n) => ({ id: n + 1, name: `Product ${n + 1}` }));
const server = jsonServer.create();
const router = jsonServer.router({ products });
let control = {};
let requests = 0;

server.use(jsonServer.bodyParser);
server.put("/control", (request, response) => {
  control = { ...control, ...request.body };
  response.jsonp({ requests });
});
server.use((request, _response, next) => {
  requests += 1;
  if (control.fault === "repeated_page") {
    const { _page, _start, _limit } = request.query;
    if (_page) request.query._page = String(Math.max(1, Number(_page) - 1));
    if (_start) request.query._start = String(Math.max(0, Number(_start) - Number(_limit)));
  }
  next();
});
router.render = (_request, response) => {
  let data = response.locals.data;
  if (!Array.isArray(data)) return response.jsonp(data);
  if (control.fault === "short_page") data = data.slice(0, data.length / 2);
  const damage = control.fault === "changing_total" ? 20 : 0;
  const total = Number(response.get("X-Total-Count")) - damage;
  response.set("X-Total-Count", String(total));
  const shapes = {
    bare: () => data,
    documented: () => ({ data, meta: { total } }),
    named: () => ({ products: data, count: total }),
    wrapped: () => ({ result: { items: data.map((product) => ({ product })), total } }),
  };
  return response.jsonp(shapes[control.envelope]());
};
server.use(router);
server.listen(Number(port), "127.0.0.1", () => console.log("ready"));
