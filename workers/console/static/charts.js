// Draws the charts of the overview. Its table of figures has the same numbers, for those without this script.
"use strict";
{
  const HEIGHT = 180;
  const place = document.getElementById("charts");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let drawn = [];

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const two = (number) => String(number).padStart(2, "0");
  const clock = (at) => `${two(at.getHours())}:${two(at.getMinutes())}`;
  const day = (at) => at.toLocaleDateString([], { day: "numeric", month: "short" });
  const when = (seconds) => new Date(seconds * 1000);
  const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
  const exact = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
  // The legend has the figures under the pointer, or else the latest.
  const last = (plot, series) => plot.data[series][plot.data[0].length - 1];

  // A time at the bottom; the day too, where it changes.
  const times = (_plot, splits) => splits.map((one, at) => {
    const isNewDay = at === 0 || when(splits[at - 1]).toDateString() !== when(one).toDateString();
    const shown = clock(when(one));
    return shown === "00:00" ? day(when(one)) : isNewDay && at > 0 ? `${shown}\n${day(when(one))}` : shown;
  });

  // A dashed line where versions of handlers were first declared.
  const markDeploys = (deploys) => (plot) => {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = colour("quiet");
    ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.beginPath();
    for (const one of deploys) {
      const x = Math.round(plot.valToPos(one.at, "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
    }
    ctx.stroke();
    ctx.restore();
  };

  const options = (names, figure, data) => ({
    width: figure.clientWidth,
    height: HEIGHT,
    scales: {
      x: { range: (_plot, low, high) => [low === high ? low - 3600 : low, high] }, // around one point it would show years
      y: { range: (_plot, low, high) => [Math.min(0, low), Math.max(1, high * 1.1)] },
    },
    axes: [
      { stroke: colour("quiet"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line") }, values: times, size: 44 },
      { stroke: colour("quiet"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line") }, size: 52, values: (_plot, splits) => splits.map((one) => short.format(one)) },
    ],
    series: [
      { label: "Until", value: (plot, at) => `${day(when(at ?? last(plot, 0)))} ${clock(when(at ?? last(plot, 0)))}` },
      ...names.map((name) => ({
        label: name,
        stroke: colour(`chart-${name}`),
        fill: name === "accepted" ? `${colour("chart-accepted")}22` : undefined, // else settled would hide it
        width: 2,
        dash: { duplicates: [2, 3], retried: [6, 3], spooled: [2, 3], refused: [8, 3] }[name],
        points: { show: data.at.length < 3 },
        value: (plot, number, series) => exact.format(number ?? last(plot, series) ?? 0),
      })),
    ],
    cursor: { drag: { x: false, y: false }, y: false },
    hooks: { draw: [markDeploys(data.deploys)] },
  });

  const draw = () => {
    for (const plot of drawn) plot.destroy();
    const data = JSON.parse(place.dataset.series);
    drawn = [...place.querySelectorAll("figure")].map((figure) => {
      const names = figure.dataset.columns.split(" ").filter((name) => ["accepted", "settled", "open", "failed"].includes(name) || data[name].some(Boolean));
      return new uPlot(options(names, figure, data), [data.at, ...names.map((name) => data[name])], figure);
    });
  };

  if (place) {
    place.hidden = false;
    draw();
    dark.addEventListener("change", draw);
    new ResizeObserver(() => {
      for (const plot of drawn) plot.setSize({ width: plot.root.parentElement.clientWidth, height: HEIGHT });
    }).observe(place);
  }
}
