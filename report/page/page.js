// Draws the charts of the page, lets curves be read off, and, while the workflow runs, asks for what has changed.

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const state = {x: "steps", smoothing: 0.8, scale: "linear", cursor: 1000, hidden: new Set()};
const drawn = new Map(); // of each element with a chart, the width that it was drawn for
const NAMES = {
  loss: "loss, nats per token", learning_rate: "learning rate", gradient_norm: "gradient norm",
  tokens_per_second: "tokens per second", mfu: "MFU",
};
const SHORT = {tokens_per_second: "tokens/s", gradient_norm: "gradient"}; // beside a low panel
const SMOOTHED = ["loss", "gradient_norm"];
const AXES = {steps: "step", tokens: "tokens", hours: "hours of training"};

function theme() {
  const ink = style("--ink"), soft = style("--soft"), line = style("--line"), font = style("--sans");
  const series = style("--series").split(/,\s*/);
  return {
    background: null, font, aria: false, padding: {left: 4, right: 14, top: 4, bottom: 4},
    view: {stroke: null}, mark: {color: series[0]}, rule: {color: series[0]}, range: {category: series},
    axis: {
      labelColor: soft, titleColor: soft, gridColor: line, domainColor: soft, tickColor: soft, labelFontSize: 11.5,
      titleFontSize: 12, titleFontWeight: 400, gridWidth: 0.7, labelFont: font, titleFont: font,
    },
    axisX: {labelSeparation: 8},
    legend: {labelColor: ink, titleColor: soft, labelFontSize: 12, symbolType: "square", labelLimit: innerWidth < 600 ? 130 : 320, columns: Math.max(1, Math.floor(innerWidth / 190))},
    text: {color: ink},
  };
}

async function embed(element, spec) {
  const target = element.querySelector(".canvas") || element.appendChild(Object.assign(document.createElement("div"), {className: "canvas"}));
  const whole = {$schema: "https://vega.github.io/schema/vega-lite/v6.json", autosize: {type: "fit-x", contains: "padding"}, ...spec};
  target.setAttribute("aria-hidden", "true"); // what the plot is, its label says
  return vegaEmbed(target, whole, {actions: false, renderer: "svg", ast: true, logLevel: 1, config: theme()});
}

async function drawChart(element) {
  const width = element.clientWidth;
  if (!width || drawn.get(element) === width) return;
  drawn.set(element, width);
  const spec = JSON.parse(element.querySelector("script").textContent);
  await embed(element, {height: 190, ...spec, width});
}

// ---- curves

function smoothed(values) {
  // The mean of what was before, with weights that fall off (Kingma and Ba 2015, section 3: the bias of the start is divided out).
  let sum = 0, weight = 0;
  return values.map((value) => {
    sum = state.smoothing * sum + (1 - state.smoothing) * value;
    weight = state.smoothing * weight + (1 - state.smoothing);
    return sum / weight;
  });
}

function along(run, step) {
  if (state.x === "tokens") return step * (run.tokens_per_step || 0);
  if (state.x === "steps") return step;
  const {steps, seconds} = run.clock;
  const at = Math.min(Math.max(steps.findIndex((one) => one >= step), 1), steps.length - 1);
  if (steps.length < 2) return 0;
  const share = (step - steps[at - 1]) / (steps[at] - steps[at - 1]);
  return (seconds[at - 1] + share * (seconds[at] - seconds[at - 1])) / 3600;
}

function curvePoints(runs, name) {
  return runs.flatMap((run) => {
    if (!run[name]) return [];
    const values = SMOOTHED.includes(name) ? smoothed(run[name].values) : run[name].values;
    return run[name].steps.map((step, at) => ({x: along(run, step), y: values[at], run: run.label}));
  });
}

function panel(runs, name, width, height, last, colors) {
  const x = {field: "x", type: "quantitative", title: last ? AXES[state.x] : null, axis: {labels: last, ticks: last, format: state.x === "tokens" ? "~s" : undefined, tickCount: Math.max(3, Math.floor(width / 110))}, scale: {zero: false, nice: false}};
  const y = {field: "y", type: "quantitative", title: SHORT[name] || NAMES[name], axis: {tickCount: height > 120 ? 6 : 3, format: name === "mfu" ? ".0%" : name === "loss" ? undefined : "~s", minExtent: 44, maxExtent: 44}, scale: name === "loss" ? {type: state.scale, ...(state.scale === "linear" && {zero: false})} : {zero: name !== "learning_rate"}};
  if (name === "learning_rate") y.axis.format = ".3~g";
  const color = {field: "run", type: "nominal", legend: null, scale: colors};
  const layer = [{data: {values: curvePoints(runs, name)}, mark: {type: "line", strokeWidth: 1.6, clip: true}, encoding: {x, y, color}}];
  if (name === "loss") {
    if (state.smoothing > 0 && runs.length <= 8) {
      const raw = runs.flatMap((run) => run.loss.steps.map((step, at) => ({x: along(run, step), y: run.loss.values[at], run: run.label})));
      layer.unshift({data: {values: raw}, mark: {type: "line", strokeWidth: 0.7, opacity: 0.22}, encoding: {x, y, color}});
    }
    const held = runs.flatMap((run) => (run.held_out ? run.held_out.steps.map((step, at) => ({x: along(run, step), y: run.held_out.values[at], run: run.label})) : []));
    layer.push({data: {values: held}, mark: {type: "point", filled: true, size: 55, opacity: 1}, encoding: {x, y, color}});
  }
  layer.push({data: {name: `cursor_${name}`, values: [{x: 0}]}, mark: {type: "rule", color: style("--soft"), strokeDash: [3, 3]}, encoding: {x}});
  return {width, height, layer};
}

async function drawCurves(force) {
  const box = document.getElementById("curves");
  if (!box) return;
  const plot = box.querySelector(".plot"), width = plot.clientWidth;
  if (!width || (!force && drawn.get(plot) === width)) return;
  drawn.set(plot, width);
  const data = JSON.parse(document.getElementById("curves-data").textContent);
  const series = style("--series").split(/,\s*/);
  const colors = {domain: data.runs.map((run) => run.label), range: data.runs.map((run, at) => series[at % series.length])};
  runBoxes(box, data.runs, colors.range);
  const runs = data.runs.filter((run) => !state.hidden.has(run.label));
  const shown = Object.keys(NAMES).filter((name) => runs.some((run) => run[name]));
  if (!shown.length) return;
  const inner = Math.max(width - 92, 160);
  const result = await embed(plot, {
    autosize: {type: "pad"},
    vconcat: shown.map((name, at) => panel(runs, name, inner, name === "loss" ? Math.max(220, Math.min(340, width * 0.45)) : 76, at === shown.length - 1, colors)),
    spacing: 12, resolve: {scale: {x: "shared"}},
  });
  box.reading = {view: result.view, runs, shown, colors, range: extent(runs), inner};
  read();
}

function extent(runs) {
  const all = runs.flatMap((run) => (run.loss ? [along(run, run.loss.steps[0]), along(run, run.loss.steps.at(-1))] : []));
  return [Math.min(...all), Math.max(...all)];
}

function runBoxes(box, runs, colors) {
  const field = box.querySelector(".runs");
  if (field.querySelector("label")) return;
  runs.forEach((run, at) => {
    const label = document.createElement("label"), input = document.createElement("input"), name = document.createElement("span");
    Object.assign(input, {type: "checkbox", checked: !state.hidden.has(run.label)});
    input.addEventListener("change", () => {
      state.hidden[input.checked ? "delete" : "add"](run.label);
      drawCurves(true);
    });
    name.textContent = run.label;
    label.style.setProperty("--color", colors[at]);
    label.append(input, name);
    field.append(label);
  });
}

function nearest(run, name, x) {
  const steps = run[name].steps;
  let low = 0, high = steps.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (along(run, steps[middle]) < x) low = middle + 1; else high = middle;
  }
  if (low && x - along(run, steps[low - 1]) < along(run, steps[low]) - x) low -= 1;
  return low;
}

function shownNumber(value) {
  if (Math.abs(value) >= 1e4) return Math.round(value).toLocaleString("en");
  if (value && Math.abs(value) < 1e-3) return value.toExponential(3);
  return String(Number(value.toPrecision(5)));
}

function read() {
  // The values of every run at the cursor, as measured there: not smoothed.
  const box = document.getElementById("curves"), reading = box && box.reading;
  if (!reading) return;
  const [low, high] = reading.range, x = low + ((high - low) * state.cursor) / 1000;
  const table = document.createElement("table"), names = reading.shown;
  const head = table.createTHead().insertRow();
  for (const text of ["run", "step", ...names.map((name) => NAMES[name]), "held-out loss"]) {
    const cell = document.createElement("th");
    cell.textContent = text;
    cell.scope = "col";
    head.append(cell);
  }
  const body = table.createTBody();
  for (const run of reading.runs.slice(0, 12)) {
    if (!run.loss) continue;
    const row = body.insertRow(), at = nearest(run, "loss", x);
    row.insertCell().textContent = run.label;
    row.insertCell().textContent = shownNumber(run.loss.steps[at]);
    for (const name of names) row.insertCell().textContent = run[name] ? shownNumber(run[name].values[nearest(run, name, x)]) : "–";
    const held = run.held_out ? nearest(run, "held_out", x) : null;
    row.insertCell().textContent = held === null ? "–" : `${shownNumber(run.held_out.values[held])} at step ${shownNumber(run.held_out.steps[held])}`;
  }
  const output = box.querySelector(".reading");
  output.replaceChildren(table);
  if (reading.runs.length > 12) output.append(`and ${reading.runs.length - 12} more runs; deselect some of the runs above`);
  for (const name of names) {
    try { reading.view.data(`cursor_${name}`, [{x}]); } catch { /* drawn anew at this moment */ }
  }
  reading.view.runAsync();
}

document.addEventListener("input", (event) => {
  const name = event.target.dataset.control;
  if (!name) return;
  state[name] = event.target.type === "range" ? Number(event.target.value) : event.target.value;
  if (name === "cursor") read(); else drawCurves(true);
});
document.addEventListener("pointermove", (event) => {
  const plot = event.target.closest ? event.target.closest("#curves .plot") : null;
  if (plot) {
    const box = document.getElementById("curves"), area = plot.querySelector("svg .role-scope path.background");
    if (!box.reading || !area) return;
    const frame = area.getBoundingClientRect();
    const share = (event.clientX - frame.left) / Math.max(frame.width, 1);
    if (share < 0 || share > 1) return;
    state.cursor = Math.round(1000 * share);
    box.querySelector("[data-control=cursor]").value = state.cursor;
    read();
  }
});

// ---- drawing what is in sight, and again where the width or the scheme has changed

const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) draw(entry.target);
}, {rootMargin: "400px"});
function draw(element) {
  return element.closest("#curves") ? drawCurves(false) : drawChart(element);
}
function watchPlots(root) {
  for (const plot of root.querySelectorAll(".plot")) seen.observe(plot);
}
async function redraw() {
  drawn.clear();
  for (const plot of document.querySelectorAll(".plot")) {
    seen.unobserve(plot);
    seen.observe(plot);
  }
}
let timer;
let known = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === known) return;
  known = innerWidth;
  clearTimeout(timer);
  timer = setTimeout(redraw, 150);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
addEventListener("beforeprint", () => document.querySelectorAll(".plot").forEach(draw));
watchPlots(document);

const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
const place = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const link = links.get(entry.target.id);
    if (entry.isIntersecting) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current");
  }
}, {rootMargin: "-20% 0px -70% 0px"});
for (const section of document.querySelectorAll("main section")) place.observe(section);

// ---- while the workflow runs

const live = document.body.dataset.live;
const label = document.getElementById("state");
function put(section) {
  const old = document.getElementById(section.id);
  if (!old || old.dataset.version === section.version) return;
  const open = [...old.querySelectorAll("details")].map((one) => one.open);
  old.dataset.version = section.version;
  const height = old.offsetHeight;
  old.style.minHeight = `${height}px`;
  old.innerHTML = section.html;
  old.querySelectorAll("details").forEach((one, at) => { one.open = Boolean(open[at]); });
  for (const control of old.querySelectorAll("[data-control]")) control.value = state[control.dataset.control];
  watchPlots(old);
  setTimeout(() => { old.style.minHeight = ""; }, 800);
}
let silent = 0; // questions in a row without an answer
async function ask() {
  const versions = Object.fromEntries([...document.querySelectorAll("main section")].map((one) => [one.id, one.dataset.version]));
  try {
    const answer = await fetch(`${live}?${new URLSearchParams(versions)}`, {cache: "no-store"});
    const {sections, ended} = await answer.json();
    sections.forEach(put);
    silent = 0;
    label.textContent = ended ? "ended" : "live";
    if (ended) return;
  } catch {
    silent += 1;
    label.textContent = silent < 5 ? "no answer" : "no answer; the server has stopped";
    if (silent === 5) return;
  }
  setTimeout(ask, 2000);
}
if (live) setTimeout(ask, 2000);
document.documentElement.dataset.ready = "true";
