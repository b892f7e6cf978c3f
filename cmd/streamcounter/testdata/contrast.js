// Returns each element whose text has less contrast with its background than WCAG AA requires.
(() => {
  const rgb = (c) => { const m = c.match(/[\d.]+/g).map(Number); return m.length > 3 ? m : [...m, 1]; };
  const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (e) => { for (; e; e = e.parentElement) {
      const c = rgb(getComputedStyle(e).backgroundColor); if (c[3] === 1) return c; }
    return [255, 255, 255]; };
  const bad = [];
  for (const e of document.querySelectorAll('body *')) {
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) ||
      e.disabled || !e.checkVisibility()) continue;
    const s = getComputedStyle(e), a = light(rgb(e instanceof SVGElement ? s.fill : s.color)), b = light(behind(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const large = parseFloat(s.fontSize) >= 24 || parseFloat(s.fontSize) >= 18.66 && s.fontWeight >= 700;
    if (ratio < (large ? 3 : 4.5)) bad.push(e.tagName + ' ' + e.className + ' "' +
      e.textContent.slice(0, 30) + '" ' + ratio.toFixed(2));
  }
  return bad.join('; ');
})()
