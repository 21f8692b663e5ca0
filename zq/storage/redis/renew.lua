#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- Starts a claim anew. KEYS: project, queue. ARGV: now, claim, ttl, grace. Returns how many messages it holds.

local q, now = queue_at(4), tonumber(ARGV[1])
local messages = held(q, ARGV[2], now)
for _, m in ipairs(messages) do put_under(m, ARGV[2], now, tonumber(ARGV[3]), tonumber(ARGV[4])) end
rewrite(q, messages)
return #messages
