// SPDX-License-Identifier: Apache-2.0
// The tokens of the project. A secret is shown once; after that a token is its name and when it was used last.

import { useState } from "preact/hooks";
import { call } from "../api.js";
import { Act, announce } from "../parts/act.js";
import { copy } from "../parts/body.js";
import { ask, given } from "../parts/confirm.js";
import { html } from "../parts/html.js";
import { lacking, More, Rows, usePaged } from "../parts/paged.js";
import { Stale } from "../parts/states.js";
import { moment, visible } from "../text.js";

const EVERY = 5;
const DAYS = 90;

/** The part. */
export function Tokens() {
  const found = usePaged("tokens", "tokens", EVERY);
  const [made, setMade] = useState(null);
  const shown = (token) => {
    setMade(token);
    found.again();
  };
  return html`<div class="row tools"><${Act} rule="tokens:create" kind="main" onClick=${() => askToMake(shown)}>Create a token…</${Act}></div>
    ${made && html`<${Secret} made=${made} forget=${() => setMade(null)} />`}
    ${lacking(found) ?? html`<${Stale} found=${found} /><${Listed} found=${found} shown=${shown} />`}`;
}

/** The one time that it is seen. It is in no address and no storage. */
function Secret({ made, forget }) {
  return html`<div class="state secret" role="status">
    <p class="state-title">Token ${visible(made.name || made.id)}</p>
    <p>The token is shown only once. Copy it now.</p>
    <p><code>${made.token}</code></p>
    <p class="row"><button type="button" onClick=${() => copy(made.token, "The token")}>Copy</button> <button type="button" onClick=${forget}>Close</button></p>
  </div>`;
}

function Listed({ found, shown }) {
  const row = (token) => html`<tr key=${token.id} data-row>
    <th scope="row">${visible(token.name || "unnamed")} <span class="quiet id">${token.id}</span></th>
    <td data-name="Scopes">${token.scopes === null ? "all" : visible(token.scopes.join(", "))}</td>
    <td data-name="Roles">${visible(token.roles.join(", "))}</td>
    <td data-name="Last used">${token.last_used ? moment(token.last_used) : "never"}</td>
    <td data-name="Expires">${moment(token.expires)}</td>
    <td><div class="row">
      <${Act} rule="tokens:create" aria-label=${`Rotate ${token.name || token.id}…`} onClick=${() => askToRotate(token, shown)}>Rotate…</${Act}>
      <${Act} rule="tokens:delete" kind="danger" aria-label=${`Revoke ${token.name || token.id}…`} onClick=${() => askToRevoke(token, found.again)}>Revoke…</${Act}>
    </div></td>
  </tr>`;
  return html`<${Rows} name="Tokens" columns=${["Name", "Scopes", "Roles", "Last used", "Expires", "Actions"]}>${found.value.map(row)}</${Rows}><${More} found=${found} />`;
}

function askToMake(shown) {
  const body = html`<label class="field"><span>Name</span><input type="text" id="token-name" autocomplete="off" maxlength="256" /></label>
    <label class="field"><span>Scopes, one per line, for example observe:queue/mail (empty: all your permissions)</span><textarea id="token-scopes" rows="3" spellcheck=${false}></textarea></label>
    <label class="field short"><span>Valid for (days)</span><input type="text" id="token-days" inputmode="numeric" autocomplete="off" value=${DAYS} /></label>`;
  const act = async () => {
    const scopes = given("token-scopes").split("\n").map((line) => line.trim()).filter(Boolean);
    const terms = { name: given("token-name"), days: Number(given("token-days")), ...(scopes.length > 0 && { scopes }) };
    const { text } = await call("POST", "tokens", { body: JSON.stringify(terms) });
    shown(JSON.parse(text));
  };
  ask({ title: "Create a token", verb: "Create", harmless: true, body, act });
}

function askToRotate(token, shown) {
  const body = html`<p>The server creates a replacement for ${visible(token.name || token.id)}. The old token expires within a day.</p>`;
  const act = async () => shown(JSON.parse((await call("POST", `tokens/${token.id}/rotate`)).text));
  ask({ title: "Rotate a token", verb: "Rotate", harmless: true, body, act });
}

function askToRevoke(token, done) {
  const body = html`<p>The server rejects all further requests with ${visible(token.name || token.id)}. You cannot undo this.</p>`;
  const act = async () => {
    await call("DELETE", `tokens/${token.id}`);
    announce("The token was revoked.");
    done();
  };
  ask({ title: "Revoke a token", verb: "Revoke", body, act });
}
