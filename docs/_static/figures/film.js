// Where a model looks in a few images while it trains. `maps` are bytes: a map for each frame and image.
live("film", (figure, { steps, scale, images, labels, guesses, accuracies, maps }) => {
  const bytes = Uint8Array.from(atob(maps), (c) => c.charCodeAt(0));
  const patches = bytes.length / steps.length / images.length, side = Math.sqrt(patches);
  const place = document.createElement("div");
  place.className = "film";
  place.innerHTML = images.map((url, i) => `<div><span class="pair"><img src="${url}" alt="${labels[i]}">
    <span class="map" style="background-image: url(${url})"><canvas width="${side}" height="${side}" role="img"
    aria-label="attention over the ${labels[i]}"></canvas></span></span><span class="guess"></span></div>`).join("");
  figure.prepend(place);

  // Interpolate the colour map at a value from 0 to 255.
  function colour(value) {
    const position = (value / 255) * (scale.length - 1), below = Math.min(Math.floor(position), scale.length - 2);
    return scale[below].map((c, i) => c + (position - below) * (scale[below + 1][i] - c));
  }

  player(figure, "Step", steps.length - 1, (frame) => {
    [...place.children].forEach((box, i) => {
      const context = box.querySelector("canvas").getContext("2d"), pixels = context.createImageData(side, side);
      const map = bytes.subarray((frame * images.length + i) * patches).subarray(0, patches);
      map.forEach((value, j) => pixels.data.set([...colour(value), 255], 4 * j));
      context.putImageData(pixels, 0, 0);
      const guess = guesses[frame][i];
      box.lastChild.textContent = guess === labels[i] ? `${guess} ✓` : `${guess}, not ${labels[i]}`;
    });
    const accuracy = (100 * accuracies[frame]).toFixed(1);
    return `Step ${steps[frame]} of ${steps.at(-1)}: ${accuracy} % of new images classified correctly`;
  }, 700);
});
