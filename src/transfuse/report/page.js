"use strict";
// Selects, sorts and draws the rows of the page; every statistic and every text comes with them.

const { rows, runs, variants, looks } = JSON.parse(document.getElementById("data").textContent);
const form = document.getElementById("filters");
const body = document.getElementById("rows");
const lines = [...body.rows];
const headings = [...document.querySelectorAll("th[aria-sort]")];

function look(variant) {
  const index = variants.indexOf(variant) % looks.length;
  const [symbol, dash, pattern] = looks[index];
  const ours = variant === variants[0];
  return { color: css(`--v${index}`), symbol: ours ? symbol : `${symbol}-open`, dash, pattern };
}

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Plotly reads a little HTML in its texts; what comes from a file is only text.
function plain(text, length = 80) {
  const short = text.length > length ? `${text.slice(0, length - 1)}…` : text;
  return short.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

function groups(items, ...keys) {
  const found = new Map();
  for (const item of items) {
    const name = JSON.stringify(keys.map((key) => item[key]));
    if (!found.has(name)) found.set(name, []);
    found.get(name).push(item);
  }
  return [...found.values()];
}

// transfuse comes last, to lie on top.
function byVariant(items) {
  const rank = ([row]) => variants.length - variants.indexOf(row.variant);
  return groups(items, "variant").sort((a, b) => rank(a) - rank(b));
}

// Every axis of numbers is logarithmic; ticks as round as the range allows.
function ticks(low, high) {
  const fine = [1, 1.1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 4, 5, 6, 7, 8, 9];
  const [first, last] = [low, high].map((end) => Math.floor(Math.log10(end)));
  let found = [];
  for (const steps of [[1], [1, 2, 5], [1, 1.5, 2, 3, 5, 7], fine]) {
    found = [];
    for (let power = first; power <= last; power++) {
      found.push(...steps.map((step) => Number(`${step}e${power}`)));
    }
    found = found.filter((tick) => tick >= low && tick <= high);
    if (found.length > 3) break;
  }
  return found;
}

function logAxis(low, high, text, tickformat) {
  const range = [Math.log10(low), Math.log10(high)];
  return { type: "log", range, tickvals: ticks(low, high), tickformat, title: { text, standoff: 8 } };
}

function layout(height, { xaxis, yaxis, ...rest }) {
  const [ground, ink, line] = [css("--ground"), css("--ink"), css("--line")];
  const font = { family: getComputedStyle(document.body).fontFamily, size: 12, color: ink };
  const axis = { gridcolor: line, linecolor: line, zeroline: false, fixedrange: true };
  return {
    height,
    margin: { l: 76, r: 16, t: 8, b: 48 },
    paper_bgcolor: ground,
    plot_bgcolor: ground,
    font,
    hoverlabel: { bgcolor: css("--raised"), bordercolor: line, font, align: "left" },
    hovermode: "closest",
    dragmode: false,
    showlegend: false,
    xaxis: { ...axis, ...xaxis },
    yaxis: { ...axis, ...yaxis },
    ...rest,
  };
}

function hover(of) {
  const text = (row) => row.texts.hover.map((line) => plain(line)).join("<br>");
  return { hovertext: of.map(text), hoverinfo: "text" };
}

function spread([middle, low, high], color) {
  const [array, arrayminus] = [high.map((v, i) => v - middle[i]), low.map((v, i) => middle[i] - v)];
  return { type: "data", symmetric: false, array, arrayminus, color, thickness: 1.5, width: 3 };
}

// Bars lie on log2 of the ratio: 2x and 0.5x are equally long, and 1x is zero.
function speed(shown) {
  const timed = shown.filter((row) => !row.axis && row.ratio > 0 && row.ratio20 > 0);
  const low = Math.min(0.9, ...timed.map((row) => row.ratio20 * 0.9));
  const high = Math.max(1.1, ...timed.map((row) => row.ratio80 * 1.1));
  return groups(timed, "operator", "set").map((panel) => bars(panel, low, high));
}

function bars(panel, low, high) {
  const left = 16 + 6.5 * Math.max(...panel.map((row) => Math.min(22, row.variant.length)));
  const slots = new Map();
  const annotations = [];
  let slot = 0;
  for (const group of groups(panel, "case", "line", "place")) {
    const text = `<b>${plain(group[0].case, 40)}</b>  ${plain(group[0].place)}`;
    const at = { xref: "paper", x: 0, xshift: -left, xanchor: "left", y: slot };
    annotations.push({ text, ...at, showarrow: false, bgcolor: css("--ground") });
    for (const row of group) slots.set(row, (slot += 1));
    slot += 1.3;
  }
  const slotsOf = (of) => of.map((row) => slots.get(row));
  const data = byVariant(panel).map((of) => {
    const { color, pattern: shape } = look(of[0].variant);
    const ends = ["ratio", "ratio20", "ratio80"].map((key) => of.map((row) => Math.log2(row[key])));
    const pattern = { shape, fillmode: "overlay", fgcolor: css("--ground"), size: 7, solidity: 0.2 };
    return {
      type: "bar", orientation: "h", width: 0.72, x: ends[0], y: slotsOf(of), ...hover(of),
      marker: { color, pattern, line: { color: css("--ink"), width: 1 } },
      error_x: spread(ends, css("--ink")),
    };
  });
  const range = [low, high].map(Math.log2);
  data.push({
    type: "scatter", mode: "text", x: panel.map(() => range[1]), y: slotsOf(panel),
    text: panel.map((row) => row.texts.ratio + (row.outcome === "not compared" ? "?" : "")),
    textposition: "middle right", cliponaxis: false, hoverinfo: "skip",
  });
  const round = ticks(low, high);
  const marks = { tickvals: round.map(Math.log2), ticktext: round.map((tick) => `${tick}x`) };
  const one = { zeroline: true, zerolinecolor: css("--ink"), zerolinewidth: 2 };
  const title = { text: "slower  ←  1x  →  transfuse is faster" };
  const names = panel.map((row) => plain(row.variant, 22));
  return {
    title: panel[0].operator, about: panel[0].set, data,
    layout: layout(18 * slot + 64, {
      margin: { l: left, r: 64, t: 4, b: 48 }, annotations,
      xaxis: { range, ...marks, ...one, title },
      yaxis: { range: [slot - 0.7, -0.7], showgrid: false, tickvals: slotsOf(panel), ticktext: names },
    }),
  };
}

function points(of, x, y, more) {
  const { color, symbol } = look(of[0].variant);
  return {
    type: "scatter", mode: "markers", x: of.map((row) => row[x]), y: of.map((row) => row[y]),
    marker: { color, symbol, size: 9, line: { color, width: 2 } }, ...hover(of), ...more,
  };
}

function roof(shown) {
  const placed = shown.filter((row) => row.intensity > 0 && row.rate > 0);
  return groups(placed, "run", "precision", "device").map((panel) => {
    const { copy, matmul } = runs[panel[0].run];
    const top = matmul[panel[0].precision];
    const bend = copy && top ? top.rate / copy.rate : panel[0].intensity;
    const xs = [...panel.map((row) => row.intensity), bend];
    const [low, high] = [Math.min(...xs) / 3, Math.max(...xs) * 3];
    const color = css("--soft");
    const line = { type: "scatter", mode: "lines+text", line: { color, width: 2 }, textfont: { color } };
    const ceilings = [];
    if (copy) {
      const x = [low, top ? bend : high];
      const y = x.map((v) => v * copy.rate);
      ceilings.push({ ...line, x, y, text: [copy.text, ""], textposition: "bottom right" });
    }
    if (top) {
      const [x, y] = [[copy ? bend : low, high], [top.rate, top.rate]];
      ceilings.push({ ...line, x, y, text: ["", top.text], textposition: "top left" });
    }
    ceilings.forEach((each) => { each.hoverinfo = "skip"; });
    const ys = [...panel.map((row) => row.rate), ...ceilings.flatMap((each) => each.y)];
    return {
      title: panel[0].place, about: "",
      data: [...ceilings, ...byVariant(panel).map((of) => points(of, "intensity", "rate"))],
      layout: layout(340, {
        xaxis: logAxis(low, high, "flop per byte", "~s"),
        yaxis: logAxis(Math.min(...ys) / 2, Math.max(...ys) * 2, "flop/s", "~s"),
      }),
    };
  });
}

function scaling(shown) {
  const swept = shown.filter((row) => row.axis && row.time > 0);
  return groups(swept, "operator", "axis", "place").map((panel) => {
    const [{ operator, axis, place }] = panel;
    const data = byVariant(panel).map((of) => {
      const { color, dash } = look(of[0].variant);
      of.sort((a, b) => a.at - b.at);
      const line = { color, dash, width: 2 };
      const error_y = spread(["time", "p20", "p80"].map((key) => of.map((row) => row[key])), color);
      return points(of, "at", "time", { mode: "lines+markers", line, error_y });
    });
    const tickvals = [...new Set(panel.map((row) => row.at))];
    const low = Math.min(...panel.map((row) => row.p20));
    const high = Math.max(...panel.map((row) => row.p80));
    return {
      title: operator, about: `${axis}, ${place}`, data,
      layout: layout(300, {
        xaxis: { type: "log", tickvals, ticktext: tickvals.map(String), title: { text: axis } },
        yaxis: logAxis(low / 1.3, high * 1.3, "ms", ",~r"),
      }),
    };
  });
}

function element(name, className = "", textContent = "") {
  return Object.assign(document.createElement(name), { className, textContent });
}

// A plot is drawn when it comes near the window, so that many of them cost nothing at first.
const waiting = new Map();
const near = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) draw(entry.target);
}, { rootMargin: "400px" });

function draw(plot) {
  const { data, layout } = waiting.get(plot);
  waiting.delete(plot);
  near.unobserve(plot);
  Plotly.newPlot(plot, data, layout, { displayModeBar: false, responsive: true });
}

function fill(id, panels) {
  const home = document.getElementById(id);
  home.querySelectorAll(".js-plotly-plot").forEach((plot) => Plotly.purge(plot));
  home.replaceChildren(...(panels.length ? [] : ["Nothing to draw with these filters."]));
  for (const panel of panels) {
    const figure = home.appendChild(element("figure"));
    figure.appendChild(element("figcaption", "", panel.title)).append(element("small", "", panel.about));
    const plot = figure.appendChild(element("div", "plot"));
    plot.style.height = `${panel.layout.height}px`;
    plot.role = "img";
    plot.ariaLabel = `Plot of ${panel.title} ${panel.about}; its numbers are in the table`;
    waiting.set(plot, panel);
    near.observe(plot);
  }
}

function update() {
  const chosen = [...form.querySelectorAll("select")].filter((select) => select.value);
  const shown = rows.filter((row) => chosen.every((select) => row[select.name] === select.value));
  const kept = new Set(shown);
  rows.forEach((row, index) => { lines[index].hidden = !kept.has(row); });
  document.getElementById("count").textContent = `${shown.length} of ${rows.length} rows`;
  near.disconnect();
  waiting.clear();
  fill("speed", speed(shown));
  fill("roof", roof(shown));
  fill("scaling", scaling(shown));
}

// Sorting is stable, by value; rows without one come last either way.
const order = [...rows.keys()];
const words = new Intl.Collator("en", { numeric: true });

function sort(heading) {
  const up = heading.getAttribute("aria-sort") !== "ascending";
  const { key } = heading.dataset;
  headings.forEach((each) => each.setAttribute("aria-sort", "none"));
  heading.setAttribute("aria-sort", up ? "ascending" : "descending");
  order.sort((a, b) => {
    const [one, other] = [rows[a][key], rows[b][key]];
    if (one === null || other === null) return (one === null) - (other === null);
    const way = typeof one === "number" ? one - other : words.compare(one, other);
    return up ? way : -way;
  });
  body.append(...order.map((index) => lines[index]));
}

headings.forEach((heading) => heading.firstElementChild.addEventListener("click", () => sort(heading)));
form.addEventListener("change", update);
form.addEventListener("reset", () => setTimeout(update));
form.addEventListener("submit", (event) => event.preventDefault());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", update);
addEventListener("beforeprint", () => [...waiting.keys()].forEach(draw));
update();
