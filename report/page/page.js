// Lets values be read off the curves, marks the section in sight, and, while the workflow runs, asks for what has changed.

const NAMES = {
  loss: "loss, nats per token", learning_rate: "learning rate", gradient_norm: "gradient norm",
  tokens_per_second: "tokens per second", mfu: "MFU", held_out: "held-out loss",
};
let cursor = 1000; // thousandths of the steps

function element(name, properties, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function shownNumber(value) {
  if (Math.abs(value) >= 1e4) return Math.round(value).toLocaleString("en");
  if (value && Math.abs(value) < 1e-3) return value.toExponential(3);
  return String(Number(value.toPrecision(5)));
}

function nearest(steps, step) {
  return steps.reduce((best, one, at) => (Math.abs(one - step) < Math.abs(steps[best] - step) ? at : best), 0);
}

function frameOf(plots) {
  const plot = [...plots.querySelectorAll(".plot")].find((one) => one.clientWidth);
  return plot && plot.querySelector("[class*=concat_0_group] path.background").getBoundingClientRect();
}

function offerReading() {
  // The values of every run at the cursor, as measured: no means.
  const box = document.getElementById("curves");
  if (!box || box.querySelector(".reading")) return;
  const runs = JSON.parse(document.getElementById("curves-data").textContent), plots = box.querySelector(".plots");
  const names = Object.keys(NAMES).filter((name) => runs.some((run) => run[name]));
  const ends = runs.flatMap((run) => names.flatMap((name) => (run[name] ? [run[name].steps[0], run[name].steps.at(-1)] : [])));
  const low = Math.min(...ends), high = Math.max(...ends);
  const slider = element("input", {type: "range", min: 0, max: 1000, value: cursor});
  const table = element("table"), line = element("div", {className: "at", hidden: true});
  const reading = element("div", {className: "reading", tabIndex: 0, role: "region", ariaLabel: "Values of the curves at the slider"}, table);
  function read() {
    const step = low + ((high - low) * cursor) / 1000, frame = frameOf(plots);
    const head = ["run", "step", ...names.map((name) => NAMES[name])].map((text) => element("th", {textContent: text, scope: "col"}));
    const rows = runs.slice(0, 12).map((run) => {
      const at = (name) => (run[name] ? nearest(run[name].steps, step) : null);
      const values = names.map((name) => {
        if (!run[name]) return "–";
        const value = shownNumber(run[name].values[at(name)]);
        return name === "held_out" ? `${value} at step ${shownNumber(run[name].steps[at(name)])}` : value;
      });
      return element("tr", {}, ...[run.label, shownNumber(run.loss.steps[at("loss")]), ...values].map((text) => element("td", {textContent: text})));
    });
    table.replaceChildren(element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows));
    if (frame) line.style.left = `${frame.left - plots.getBoundingClientRect().left + (frame.width * cursor) / 1000}px`;
  }
  function move(to) {
    cursor = to;
    line.hidden = false;
    read();
  }
  slider.addEventListener("input", () => move(Number(slider.value)));
  plots.addEventListener("pointermove", (event) => {
    const frame = frameOf(plots), share = frame ? (event.clientX - frame.left) / frame.width : -1;
    if (share < 0 || share > 1) return;
    slider.value = Math.round(1000 * share);
    move(Number(slider.value));
  });
  window.onresize = read;
  plots.append(line);
  box.append(element("label", {className: "cursor"}, "values at ", slider), reading);
  if (runs.length > 12) reading.append("of the first 12 runs");
  read();
}
offerReading();

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
  if (!old) return location.reload(); // its first content
  if (old.dataset.version === section.version) return;
  const open = [...old.querySelectorAll("details")].map((one) => one.open);
  old.dataset.version = section.version;
  old.innerHTML = section.html;
  old.querySelectorAll("details").forEach((one, at) => { one.open = Boolean(open[at]); });
  offerReading();
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
