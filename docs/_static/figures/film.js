// Where a model looks in a few images, epoch by epoch.
live("film", (figure, { epochs, scale, images, maps, guesses, labels }) => {
  const place = document.createElement("div"), side = Math.sqrt(maps[0][0].length);
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

  player(figure, "Epoch", epochs.length - 1, (frame) => {
    [...place.children].forEach((box, i) => {
      const context = box.querySelector("canvas").getContext("2d"), pixels = context.createImageData(side, side);
      maps[frame][i].forEach((value, j) => pixels.data.set([...colour(value), 255], 4 * j));
      context.putImageData(pixels, 0, 0);
      const guess = guesses[frame][i];
      box.lastChild.textContent = guess === labels[i] ? `${guess} ✓` : `${guess}, not ${labels[i]}`;
    });
    const right = labels.filter((label, i) => guesses[frame][i] === label).length;
    return `${epochs[frame] ? `After epoch ${epochs[frame]}` : "Before training"}: ${right} of ${labels.length} correct`;
  }, 700);
});
