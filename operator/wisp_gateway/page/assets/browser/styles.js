// Style sheets that belong to one view, loaded with it.

/** Resolve once the sheet at `href` is in use, or did not come. */
export function loadStyles(href) {
  return new Promise((resolve) => {
    const sheet = Object.assign(document.createElement("link"), {
      rel: "stylesheet",
      href,
      onload: resolve,
      onerror: resolve,
    });
    document.head.append(sheet);
  });
}
