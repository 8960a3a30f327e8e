// Read the numbers in the page and draw maps of them.

const numbers = JSON.parse(document.getElementById("numbers").textContent);
const { rows, columns, heads, scale, signed } = numbers;
const patches = rows * columns;

// Interpolate a colour map at a value from 0 to 1.
function colour(value, scale) {
  const position = value * (scale.length - 1);
  const below = Math.min(Math.floor(position), scale.length - 2);
  return scale[below].map((c, i) => c + (position - below) * (scale[below + 1][i] - c));
}

// Draw a map from its minimum to its maximum; after mixing, values are signed, with 0 in the middle of the scale.
// One pixel per patch: CSS scales it to the size of the image.
function draw(canvas, values, kind) {
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(columns, rows);
  const centred = kind === "after", reach = Math.abs(values[farthest(values)]);
  const low = centred ? -reach : Math.min(...values);
  const span = centred ? 2 * reach : Math.max(...values) - low;
  values.forEach((value, i) => {
    const position = span > 0 ? (value - low) / span : centred ? 0.5 : 0;
    pixels.data.set([...colour(position, centred ? signed : scale), 255], 4 * i);
  });
  context.putImageData(pixels, 0, 0);
}

const mean = (maps) => maps[0].map((_, i) => maps.reduce((sum, map) => sum + map[i], 0) / maps.length);
const digits = (value) =>
  (value === 0 || Math.abs(value) >= 1e-4 ? String(Number(value.toPrecision(3))) : value.toExponential(1)).replaceAll("-", "−");
const largest = (values) => values.indexOf(Math.max(...values));
const farthest = (values) => largest(values.map(Math.abs)); // from zero
const nearlyEven = (low, high) => low === high || (low * high > 0 && Math.max(high / low, low / high) < 1.1);
const where = (patch) => `row ${Math.floor(patch / columns) + 1}, column ${(patch % columns) + 1}`;

// Unpack self-attention (see minicait/explain/packing.py): float16 for each row, then a byte for each value.
async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const content = await new Response(inflated).arrayBuffer();
  const count = numbers.layers.length * heads * patches;
  const halves = new Uint16Array(content, 0, 2 * count);
  const codes = new Uint8Array(content, 4 * count);
  const float = (half) => (half >> 10 ? (1 + (half & 1023) / 1024) * 2 ** ((half >> 10) - 15) : (half & 1023) * 2 ** -24);
  // the attention of one patch, for a layer (of those in the file) and a head
  return (layer, head, patch) => {
    const row = (layer * heads + head) * patches + patch;
    const low = float(halves[row]), step = float(halves[count + row]) / numbers.steps;
    return Array.from(codes.subarray(row * patches, (row + 1) * patches), (code) => low + code * step);
  };
}

// after = W before + b, for one head
function mix(maps, [...weights]) {
  const bias = weights.pop();
  return maps[0].map((_, i) => maps.reduce((sum, map, g) => sum + weights[g] * map[i], bias));
}
