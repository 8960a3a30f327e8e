// The selection, what depends on it, and the mouse and keyboard events that change it.

const byId = (id) => document.getElementById(id);
const figures = [...document.querySelectorAll("figure[data-kind]")];
const chosen = { patch: numbers.start, layer: 0, head: 0 };
let attention = null; // (layer, head, patch) => map, once unpacked

// The current values of a figure's map.
function values(figure) {
  const { kind, layer, head } = figure.dataset;
  if (kind === "class") {
    const maps = numbers.class_attention[layer];
    return head === "mean" ? mean(maps) : maps[head];
  }
  if (!attention) return null;
  const maps = Array.from({ length: heads }, (_, g) => attention(chosen.layer, g, chosen.patch));
  return kind === "before" ? maps[chosen.head] : mix(maps, numbers.mixing[chosen.layer][chosen.head]);
}

function drawAll() {
  for (const figure of figures) {
    figure.values = values(figure);
    if (figure.values) draw(figure.querySelector("canvas"), figure.values, figure.dataset.kind);
  }
  showPatch();
}

// Move the frames to the selected patch and show its value under each map.
function showPatch() {
  document.body.style.setProperty("--row", Math.floor(chosen.patch / columns));
  document.body.style.setProperty("--column", chosen.patch % columns);
  for (const figure of figures) {
    if (!figure.values) continue;
    const low = Math.min(...figure.values), high = Math.max(...figure.values);
    figure.querySelector(".range").textContent =
      `${digits(low)} to ${digits(high)}${nearlyEven(low, high) ? ", nearly even" : ""}`;
    figure.querySelector(".value").textContent = `here ${digits(figure.values[chosen.patch])}`;
  }
}

function drawSelf() {
  for (const figure of figures.filter((f) => f.dataset.kind !== "class")) {
    figure.values = values(figure);
    if (figure.values) draw(figure.querySelector("canvas"), figure.values, figure.dataset.kind);
  }
  showPatch();
  if (attention) announce();
}

// Describe the selection in words, for screen readers.
function announce() {
  const at = (kind, find) => {
    const map = figures.find((f) => f.dataset.kind === kind).values;
    return `${where(find(map))} (${digits(map[find(map)])})`;
  };
  byId("chosen").textContent =
    `Patch at ${where(chosen.patch)}, layer ${numbers.layers[chosen.layer] + 1}, head ${chosen.head + 1}: ` +
    `its attention is largest at ${at("before", largest)} before mixing; ` +
    `after mixing it differs most from zero at ${at("after", farthest)}.`;
  const weights = numbers.mixing[chosen.layer][chosen.head];
  const terms = weights.map((w, g) => {
    const sign = w < 0 ? (g ? " − " : "−") : g ? " + " : "";
    return `${sign}${digits(Math.abs(w))}${g < heads ? ` A${g + 1}` : ""}`;
  });
  byId("mixture").textContent = `After mixing, head ${chosen.head + 1} is ${terms.join("")}, where A1 is head 1 before.`;
}

// Show the layer's number in the model, of which this file may omit layers.
function nameLayer() {
  const name = numbers.layers[chosen.layer] + 1;
  byId("layer-value").textContent = name;
  byId("layer").setAttribute("aria-valuetext", `layer ${name}`);
}

function choose(patch) {
  if (patch === chosen.patch) return;
  chosen.patch = patch;
  drawSelf();
}

// Show a value and its equation in the line at the bottom.
function read(label, equation) {
  byId("reading-value").textContent = label;
  const source = byId(equation);
  byId("reading-equation").replaceChildren(
    `${source.querySelector("strong").textContent}: `,
    ...[...source.querySelectorAll("math")].map((math) => math.cloneNode(true)),
  );
}

function readMap(figure, patch) {
  if (figure.values) read(`${figure.dataset.name}, ${where(patch)}: ${digits(figure.values[patch])}`, figure.dataset.equation);
}

const KEYS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

function patchBy(key, patch) {
  const row = Math.floor(patch / columns), column = patch % columns;
  if (key === "Home") return row * columns;
  if (key === "End") return (row + 1) * columns - 1;
  if (!(key in KEYS)) return null;
  const clamp = (value, count) => Math.min(Math.max(value, 0), count - 1);
  return clamp(row + KEYS[key][0], rows) * columns + clamp(column + KEYS[key][1], columns);
}

for (const figure of figures) {
  const map = figure.querySelector(".map");
  const under = (event) => {
    const box = map.getBoundingClientRect();
    const part = (at, start, size, count) => Math.min(Math.max(Math.floor(((at - start) / size) * count), 0), count - 1);
    return part(event.clientY, box.top, box.height, rows) * columns + part(event.clientX, box.left, box.width, columns);
  };
  map.addEventListener("pointermove", (event) => readMap(figure, under(event)));
  map.addEventListener("click", (event) => {
    choose(under(event));
    readMap(figure, chosen.patch);
  });
  map.addEventListener("focus", () => readMap(figure, chosen.patch));
  map.addEventListener("keydown", (event) => {
    const patch = patchBy(event.key, chosen.patch);
    if (patch === null) return;
    event.preventDefault();
    choose(patch);
    readMap(figure, patch);
  });
}

for (const element of document.querySelectorAll("[data-equation]:not(figure)")) {
  const show = () => read(element.getAttribute("aria-label"), element.dataset.equation);
  element.addEventListener("pointerenter", show);
  element.addEventListener("focus", show);
}

// A chart or a list of predictions is one tab stop; the arrow keys move inside it.
for (const group of document.querySelectorAll(".chart, .predictions")) {
  const points = [...group.querySelectorAll("[data-equation]")];
  group.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1, Home: -points.length, End: points.length }[event.key];
    const now = points.indexOf(document.activeElement);
    if (!step || now < 0) return;
    event.preventDefault();
    const next = Math.min(Math.max(now + step, 0), points.length - 1);
    points[now].tabIndex = -1;
    points[next].tabIndex = 0;
    points[next].focus();
  });
}

// Scroll to an equation by script: inside a frame of another page, the link itself would not work.
for (const link of document.querySelectorAll("a[href^='#']")) {
  link.addEventListener("click", (event) => {
    event.preventDefault();
    const goal = byId(link.hash.slice(1));
    goal.scrollIntoView({ block: "center" });
    goal.focus();
  });
}

byId("opacity").addEventListener("input", (event) => {
  document.documentElement.style.setProperty("--opacity", event.target.value / 100);
  byId("opacity-value").textContent = `${event.target.value} %`;
});
byId("smooth").addEventListener("change", (event) => document.body.classList.toggle("smooth", event.target.checked));
byId("layer").addEventListener("input", (event) => {
  chosen.layer = event.target.value - 1;
  nameLayer();
  drawSelf();
});
for (const choice of document.querySelectorAll("input[name=head]")) {
  choice.addEventListener("change", () => {
    chosen.head = Number(choice.value);
    drawSelf();
  });
}

drawAll();
if (numbers.layers.length) {
  nameLayer();
  unpack(byId("packed").textContent).then(
    (found) => {
      attention = found;
      drawSelf();
      document.body.dataset.ready = "";
    },
    (error) => (byId("chosen").textContent = `This browser cannot unpack the maps (${error}).`),
  );
} else document.body.dataset.ready = "";
