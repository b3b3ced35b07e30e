// The frame of the page: the header with links to the views, the view that the address names, and the banners above it.

import { follow, feed } from "./feed.js";
import { Icon } from "./icons.js";
import { KeyButton, KeyDialog, KeyPrompt } from "./key_prompt.js";
import { catalog, followCatalog } from "./models/catalog.js";
import { createStore, useStore } from "./store.js";
import { ThemeSwitch } from "./theme_switch.js";
import { html, render, useEffect, useRef, useState } from "./vendor/preact.js";

/** Views by the name in the address (`#/live`); each module's default export is a component. */
const VIEWS = {
  models: { title: "Models", load: () => import("./views/models.js") },
  chat: { title: "Chat", load: () => import("./chat/view.js") },
  live: { title: "Live", load: () => import("./views/live.js") },
  wakes: { title: "Wakes", load: () => import("./views/wakes.js") },
  requests: { title: "Requests", load: () => import("./views/requests.js") },
};
const FIRST = "models";

/** `#/chat?model=default/m` → the view's name, and its parameters. */
function readAddress() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const name = Object.hasOwn(VIEWS, path) ? path : FIRST;
  return { name, params: new URLSearchParams(query), id: `${name}?${query}` };
}

function useAddress() {
  const [address, setAddress] = useState(readAddress);
  useEffect(() => {
    const read = () => setAddress(readAddress());
    addEventListener("hashchange", read);
    return () => removeEventListener("hashchange", read);
  }, []);
  return address;
}

const loaded = createStore({}); // views by name

/** The component of a view, once its module has come; an Error if it did not. */
function useView(name) {
  useEffect(() => {
    if (!loaded.get()[name]) load(name);
  }, [name]);
  return useStore(loaded, (views) => views[name]);
}

async function load(name) {
  const view = await VIEWS[name].load().then((module) => module.default, (error) => error);
  loaded.set({ [name]: view });
}

function Nav({ current }) {
  return html`<nav aria-label="Views">
    <ul class="nav">
      ${Object.entries(VIEWS).map(
        ([name, { title }]) => html`<li key=${name}>
          <a href=${`#/${name}`} aria-current=${name === current ? "page" : undefined}>
            <${Icon} name=${name} /><span>${title}</span>
          </a>
        </li>`,
      )}
    </ul>
  </nav>`;
}

/** Says that the gateway is away, for as long as it is. */
function Connection() {
  const link = useStore(feed, (state) => state.link);
  const refusal = useStore(feed, (state) => state.refusal);
  const status = useStore(feed, (state) => state.status);
  let text = "";
  if (link === "away") text = `${refusal || "The gateway can’t be reached."} Trying again…`;
  else if (link === "open" && status === "stopping") text = "This gateway is shutting down. Running requests finish first.";
  return html`<div role="status">
    ${text && html`<p class="banner"><span class="spinner" aria-hidden="true"></span>${text}</p>`}
  </div>`;
}

function View({ address }) {
  const Component = useView(address.name);
  const main = useRef();
  const isFirst = useRef(true);
  useEffect(() => {
    document.title = `${VIEWS[address.name].title} · Wisp`;
    if (!isFirst.current) main.current.focus({ preventScroll: true });
    isFirst.current = false;
    scrollTo(0, 0);
  }, [address.name]);
  let content = null;
  if (Component instanceof Error) content = html`<${NotLoaded} title=${VIEWS[address.name].title} />`;
  else if (Component) content = html`<${Component} params=${address.params} />`;
  return html`<main id="main" ref=${main} tabindex="-1" class=${`view view-${address.name}`}>${content}</main>`;
}

function NotLoaded({ title }) {
  return html`<div class="empty">
    <h1>${title} didn't load</h1>
    <p>The gateway may be unreachable. <a href=${location.href} onClick=${() => location.reload()}>Reload the page</a>.</p>
  </div>`;
}

function App() {
  const address = useAddress();
  const isFeedLocked = useStore(feed, (state) => state.link === "locked");
  const hasOpenModels = useStore(catalog, ({ cards }) => cards?.length > 0);
  const isLocked = isFeedLocked && !(hasOpenModels && address.name === "chat"); // chat needs no more than a model
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to content</a>
    <header class="bar">
      <a class="brand" href="#/models" aria-label="Wisp, models"><${Icon} name="wisp" /><span>Wisp</span></a>
      <${Nav} current=${address.name} />
      ${!isLocked && html`<${KeyButton} />`}
      <${ThemeSwitch} />
    </header>
    <${Connection} />
    ${isLocked ? html`<${KeyPrompt} />` : html`<${View} address=${address} />`}
    <${KeyDialog} />
  `;
}

function skip(event) {
  event.preventDefault(); // the address names the view
  document.getElementById("main")?.focus();
}

load(readAddress().name); // before the first effect asks for it
followCatalog();
follow();
render(html`<${App} />`, document.getElementById("app"));
