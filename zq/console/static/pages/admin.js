// SPDX-License-Identifier: Apache-2.0
// Administration: quotas, tokens, projects, pools and flavors; each part as far as the caller may use it.

import { html } from "../parts/html.js";
import { Empty } from "../parts/states.js";
import { at } from "../route.js";
import { grafana, may, session } from "../session.js";
import { Flavors, Pools } from "./pools.js";
import { Projects } from "./projects.js";
import { Quota } from "./quota.js";
import { Tokens } from "./tokens.js";

// Parts that a server without authentication does not have; it has flavors for administrators only.
const AUTHENTICATED = ["quota", "tokens"];
// Each part: its name in addresses and for people, the rule to see it, its component.
const PARTS = [
  ["quota", "Quota", "quota:get", Quota],
  ["tokens", "Tokens", "tokens:get_all", Tokens],
  ["projects", "Projects", "admin:projects", Projects],
  ["pools", "Pools", "pools:get_all", Pools],
  ["flavors", "Flavors", "flavors:get_all", Flavors],
];

/** The page. */
export function Administration({ route }) {
  const open = session.me?.auth === "none";
  const absent = open ? [...AUTHENTICATED, ...(session.me.admin ? [] : ["flavors"])] : [];
  const parts = PARTS.filter(([name, , rule]) => may(rule) && !absent.includes(name));
  const now = parts.find(([name]) => name === (route.query.part ?? parts[0]?.[0]));
  const tab = ([name, label]) =>
    html`<li key=${name}><a href=${at(route.project, "admin", { part: name })} aria-current=${name === now?.[0] ? "page" : undefined}>${label}</a></li>`;
  return html`<div class="title"><h1>Administration</h1>${grafana && html`<a href=${grafana}>Grafana</a>`}</div>
    <nav class="tabs" aria-label="Administration sections"><ul>${parts.map(tab)}</ul></nav>
    ${now ? html`<${now[3]} key=${now[0]} route=${route} />` : html`<${Nothing} open=${open} />`}`;
}

function Nothing({ open }) {
  if (!open) return html`<${Empty} title="No permission"><p>Your credential does not allow any administration.</p></${Empty}>`;
  return html`<${Empty} title="Nothing to administer">
    <p>Quotas and tokens require authentication: set <code>auth_strategy</code>. Pools and flavors require <code>admin_mode</code> and <code>pooling</code>.</p>
  </${Empty}>`;
}
