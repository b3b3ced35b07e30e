// The Requests view: the last requests as a table of figures and names, never a text.

import { feed, requestId } from "../feed.js";
import { formatCount, formatMoment, formatSeconds, NONE } from "../format.js";
import { Icon } from "../icons.js";
import { useStore } from "../store.js";
import { html, useState } from "../vendor/preact.js";
import { ModelFilter } from "./model_filter.js";
import { statusText, waitText } from "./request_words.js";

const SHOWN = 200;

const COLUMNS = [
  { name: "Time", of: (row) => formatMoment(row.time) },
  { name: "Model", of: (row) => row.key || NONE, isText: true },
  { name: "Status", of: (row) => html`<${Status} row=${row} />` },
  { name: "Prompt", of: (row) => formatCount(row.promptTokens), title: "Prompt tokens" },
  { name: "Cached", of: (row) => formatCount(row.cachedTokens), title: "Prompt tokens taken from the prefix cache" },
  { name: "Answer", of: (row) => formatCount(row.completionTokens), title: "Answer tokens" },
  { name: "Waited", of: waitText, title: "Time in the gateway’s queue, part of the time to the first token" },
  { name: "First token", of: (row) => formatSeconds(row.firstTokenSeconds), title: "Time to first token, with the wait" },
  { name: "Per token", of: (row) => formatSeconds(row.perTokenSeconds), title: "Mean time per token after the first" },
  { name: "Total", of: (row) => formatSeconds(row.seconds) },
  { name: "Finish", of: (row) => row.finish || NONE, isText: true },
  { name: "Key", of: (row) => row.keyName || NONE, isText: true },
];

export default function RequestsView() {
  const requests = useStore(feed, (state) => state.requests);
  const [model, setModel] = useState("");
  const [onlyErrors, setOnlyErrors] = useState(false);
  if (requests.length === 0) return html`<${NoRequest} />`;
  const isShown = (row) => (!model || row.key === model) && (!onlyErrors || row.status >= 400);
  const rows = requests.filter(isShown).slice(-SHOWN).reverse();
  return html`<div class="view-head">
      <h1>Requests</h1>
      <p class="muted">${rows.length === 1 ? "1 request" : `The last ${rows.length}`}, newest first</p>
      <label class="choice">
        <input type="checkbox" checked=${onlyErrors} onChange=${(event) => setOnlyErrors(event.target.checked)} />
        Only errors
      </label>
      <${ModelFilter} value=${model} onChange=${setModel} others=${requests.map(({ key }) => key)} />
    </div>
    ${rows.length ? html`<${Table} rows=${rows} />` : html`<p class="muted">No request matches.</p>`}`;
}

/** A table; on a narrow screen each row is a block with the columns' names in it. */
function Table({ rows }) {
  return html`<div class="table-frame" tabindex="0" role="region" aria-label="Requests">
    <table role="table">
      <thead role="rowgroup">
        <tr role="row">
          ${COLUMNS.map(
            ({ name, title, isText }) =>
              html`<th key=${name} role="columnheader" scope="col" title=${title} class=${isText ? "text" : ""}>${name}</th>`,
          )}
        </tr>
      </thead>
      <tbody role="rowgroup">
        ${rows.map(
          (row) => html`<tr key=${requestId(row)} role="row" title=${row.id}>
            ${COLUMNS.map(
              ({ name, of, isText }) =>
                html`<td key=${name} role="cell" data-name=${name} class=${isText ? "text" : "number"}>${of(row)}</td>`,
            )}
          </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}

function Status({ row }) {
  const isBad = row.status >= 400;
  const { status, limit } = row;
  return html`<span class=${isBad ? "status bad" : "status"} title=${statusText(row)}>${status}${limit && ` ${limit}`}</span>`;
}

function NoRequest() {
  return html`<section class="empty">
    <${Icon} name="requests" />
    <h1>No requests yet</h1>
    <p>Each finished request is listed here with its tokens and times, without its text. <a href="#/chat">Start a chat</a>,
    or take an example from a model's card under <a href="#/models">Models</a>.</p>
  </section>`;
}
