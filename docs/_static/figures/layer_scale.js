// Mean |λ| of every block during training: a panel for attention, one for the FFN, with a logarithmic axis.
live("layer_scale", (figure, { steps, branches }) => {
  const low = -7, high = 0; // powers of ten at the ends of the axis
  const width = 360, height = 150, left = 58, right = 348, top = 22, bottom = 122;
  const y = (value) => bottom - ((bottom - top) * (Math.log10(Math.max(value, 10 ** low)) - low)) / (high - low);
  const power = (n) => `10<tspan dy="-4" font-size="10">${String(n).replace("-", "−")}</tspan>`;
  const panels = Object.entries(branches).map(([name, frames]) => {
    const blocks = frames[0].length, pitch = (right - left - 4) / blocks, ticks = [];
    for (let n = low + 1; n <= high; n += 2)
      ticks.push(`<path class="grid" d="M${left} ${y(10 ** n)}H${right}"/>
        <text x="${left - 5}" y="${y(10 ** n) + 4}" text-anchor="end">${power(n)}</text>`);
    for (let i = 0; i < blocks; i += 5)
      ticks.push(`<text x="${left + 4 + (i + 0.4) * pitch}" y="${bottom + 13}" text-anchor="middle">${i + 1}</text>`);
    const bars = frames[0].map((_, i) => `<rect x="${left + 4 + i * pitch}" width="${0.8 * pitch}"/>`);
    return `<svg viewBox="0 0 ${width} ${height}" role="img" aria-label="${name}: mean |λ| of ${blocks} blocks">
      <text x="${left}" y="13" font-weight="bold">${name}</text>${ticks.join("")}${bars.join("")}
      <text transform="translate(10 ${(top + bottom) / 2}) rotate(-90)" text-anchor="middle">mean |λ|</text>
      <text x="${(left + right) / 2}" y="${height - 2}" text-anchor="middle">block</text></svg>`;
  });
  const place = document.createElement("div");
  place.className = "panels";
  place.innerHTML = panels.join("");
  figure.prepend(place);
  const bars = [...place.children].map((panel) => panel.querySelectorAll("rect"));
  const short = (value) => (value < 1e-3 ? value.toExponential(1).replace("-", "−") : Number(value.toPrecision(2)));

  player(figure, "Step", steps.length - 1, (frame) => {
    const texts = Object.entries(branches).map(([name, frames], panel) => {
      frames[frame].forEach((value, i) => {
        bars[panel][i].setAttribute("y", y(value));
        bars[panel][i].setAttribute("height", bottom - y(value));
      });
      return `${name} ${short(Math.min(...frames[frame]))} to ${short(Math.max(...frames[frame]))}`;
    });
    return `Step ${steps[frame]} of ${steps.at(-1)}: ${texts.join(", ")}`;
  }, 400);
});
