// Style sheets of views, loaded with their modules.

/** Resolve once the sheet is in use, or did not come. */
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
