// Read the numbers in the page, and draw a map of patches.

const numbers = JSON.parse(document.getElementById("numbers").textContent);
const { rows, columns, heads, scale, signed } = numbers;
const patches = rows * columns;
const byId = (id) => document.getElementById(id);

// Interpolate a colour map at a value from 0 to 1.
function colour(value, scale) {
  const position = value * (scale.length - 1);
  const below = Math.min(Math.floor(position), scale.length - 2);
  return scale[below].map((c, i) => c + (position - below) * (scale[below + 1][i] - c));
}

// Colours of values, from their minimum to their maximum, or to what a share of them does not exceed; signed values have
// 0 in the middle of the scale.
function coloured(values, isSigned, share = 1) {
  const sorted = Float64Array.from(values).sort(), at = share * (values.length - 1), below = Math.floor(at);
  let low = sorted[0], high = sorted[below] + (at - below) * ((sorted[below + 1] ?? 0) - sorted[below]);
  if (isSigned) [low, high] = [Math.min(low, -high), Math.max(high, -low)];
  const position = (value) => (high > low ? Math.min((value - low) / (high - low), 1) : isSigned ? 0.5 : 0);
  return values.map((value) => [...colour(position(value), isSigned ? signed : scale), 255]);
}

// Draw a colour per patch, as one pixel: CSS scales it to the size of the image.
function draw(canvas, colours) {
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(columns, rows);
  colours.forEach((colour, i) => pixels.data.set(colour, 4 * i));
  context.putImageData(pixels, 0, 0);
}
