// The selection, what depends on it, and the mouse and keyboard events that change it.

const figures = [...document.querySelectorAll("figure[data-kind]")];
const chosen = { patch: numbers.start, layer: 0, head: 0 };
const classes = numbers.patch_classes;
let attention = null; // (layer, head, patch) => map, once unpacked

// The current values of a figure's map.
function values(figure) {
  const { kind, maps, layer, head } = figure.dataset;
  if (kind === "class") return head === "mean" ? mean(numbers[maps][layer]) : numbers[maps][layer][head];
  if (kind === "classes") return classes.probability;
  if (kind === "rows") return allRows().map((row) => row[farthest(row)]);
  const ofHeads = Array.from({ length: heads }, (_, g) => attention(chosen.layer, g, chosen.patch));
  return kind === "before" ? ofHeads[chosen.head] : mix(ofHeads, numbers.mixing[chosen.layer][chosen.head]);
}

const allRows = () => Array.from({ length: patches }, (_, patch) => attention(chosen.layer, 0, patch));

function drawFigures(...kinds) {
  for (const figure of figures.filter((f) => kinds.includes(f.dataset.kind))) {
    const { kind } = figure.dataset, canvas = figure.querySelector("canvas");
    figure.values = values(figure);
    if (kind === "rows") drawRows(canvas, allRows());
    else if (kind === "classes") draw(canvas, classes.index.map((c, i) => [...classes.colours[c], 255 * classes.probability[i]]));
    else draw(canvas, coloured(figure.values, "signed" in figure.dataset, figure.dataset.share));
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
    figure.querySelector(".value").textContent = `here ${valueAt(figure, chosen.patch)}`;
  }
}

const valueAt = (figure, patch) =>
  (figure.dataset.kind === "classes" ? `${classes.names[classes.index[patch]]}, ` : "") + digits(figure.values[patch]);

// Draw what depends on the selection.
function drawSelf(...more) {
  if (!attention) return showPatch();
  drawFigures("before", "after", ...more);
  announce();
}

// Describe the selection in words, for screen readers.
function announce() {
  const [before, after] = ["before", "after"].map((kind) => figures.find((f) => f.dataset.kind === kind));
  const at = ({ values }, find) => `${where(find(values))} (${digits(values[find(values)])})`;
  const head = heads > 1 ? `, head ${chosen.head + 1}` : "";
  const selected = `Patch at ${where(chosen.patch)}, layer ${numbers.layers[chosen.layer] + 1}${head}: `;
  if (!after) {
    byId("chosen").textContent = selected + ("signed" in before.dataset
      ? `its weight is farthest from zero at ${at(before, farthest)}.`
      : `its attention is largest at ${at(before, largest)}.`);
    return;
  }
  byId("chosen").textContent =
    `${selected}its attention is largest at ${at(before, largest)} before mixing; ` +
    `after mixing it differs most from zero at ${at(after, farthest)}.`;
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
  if (figure.values) read(`${figure.dataset.name}, ${where(patch)}: ${valueAt(figure, patch)}`, figure.dataset.equation);
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

byId("opacity")?.addEventListener("input", (event) => {
  document.documentElement.style.setProperty("--opacity", event.target.value / 100);
  byId("opacity-value").textContent = `${event.target.value} %`;
});
byId("smooth")?.addEventListener("change", (event) => document.body.classList.toggle("smooth", event.target.checked));
byId("layer").addEventListener("input", (event) => {
  chosen.layer = event.target.value - 1;
  nameLayer();
  drawSelf("rows");
});
for (const slider of document.querySelectorAll("input.layers")) {
  const layers = [...slider.closest("section").querySelectorAll(".layer")];
  slider.addEventListener("input", () => {
    layers.forEach((layer, i) => (layer.hidden = i !== slider.value - 1));
    const { label } = layers[slider.value - 1].dataset;
    slider.nextElementSibling.textContent = label;
    slider.setAttribute("aria-valuetext", `layer ${label}`);
  });
}
for (const choice of document.querySelectorAll("input[name=head]")) {
  choice.addEventListener("change", () => {
    chosen.head = Number(choice.value);
    drawSelf();
  });
}

drawFigures("class", "classes");
if (numbers.layers.length) {
  nameLayer();
  unpack(byId("packed").textContent).then(
    (found) => {
      attention = found;
      drawSelf("rows");
      document.body.dataset.ready = "";
    },
    (error) => (byId("chosen").textContent = `This browser cannot unpack the maps (${error}).`),
  );
} else document.body.dataset.ready = "";
