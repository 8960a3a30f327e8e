// More maps of the numbers in the page, and their values as text.

// Draw the maps of all patches, each at the place of its patch, with one scale and a line between them.
function drawRows(canvas, maps) {
  const width = columns * (columns + 1), height = rows * (rows + 1), enlarged = Math.ceil(1200 / width);
  const pixels = new ImageData(width, height);
  coloured(maps.flat(), true).forEach((colour, i) => {
    const patch = Math.floor(i / patches), other = i % patches;
    const y = Math.floor(patch / columns) * (rows + 1) + Math.floor(other / columns);
    const x = (patch % columns) * (columns + 1) + (other % columns);
    pixels.data.set(colour, 4 * (y * width + x));
  });
  const small = new OffscreenCanvas(width, height);
  small.getContext("2d").putImageData(pixels, 0, 0);
  [canvas.width, canvas.height] = [enlarged * width, enlarged * height];
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.drawImage(small, enlarged / 2, enlarged / 2, canvas.width, canvas.height); // half a line around each map
}

const mean = (maps) => maps[0].map((_, i) => maps.reduce((sum, map) => sum + map[i], 0) / maps.length);
const digits = (value) =>
  (value === 0 || Math.abs(value) >= 1e-4 ? String(Number(value.toPrecision(3))) : value.toExponential(1)).replaceAll("-", "−");
const largest = (values) => values.indexOf(Math.max(...values));
const farthest = (values) => largest(values.map(Math.abs)); // from zero
const nearlyEven = (low, high) => low === high || (low * high > 0 && Math.max(high / low, low / high) < 1.1);
const where = (patch) => `row ${Math.floor(patch / columns) + 1}, column ${(patch % columns) + 1}`;

// Unpack what patches take from each other (see minicait/explain/packing.py): float16 for each row, then a byte for each value.
async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const content = await new Response(inflated).arrayBuffer();
  const count = numbers.layers.length * heads * patches;
  const halves = new Uint16Array(content, 0, 2 * count);
  const codes = new Uint8Array(content, 4 * count);
  const float = (half) => {
    const exponent = (half >> 10) & 31, fraction = half & 1023;
    return (half >> 15 ? -1 : 1) * (exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24);
  };
  // the weights of one patch, for a layer (of those in the file) and a head
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
