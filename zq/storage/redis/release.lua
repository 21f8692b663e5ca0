#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- Gives back what a claim holds, each message to its former place. KEYS: project, queue. ARGV: now, claim. Returns "".

local q = queue_at(4)
local messages = held(q, ARGV[2], tonumber(ARGV[1]))
strike(q, messages)
for _, m in ipairs(messages) do m.claim, m.ends, m.available = '', 0, m.former end
rewrite(q, messages)
return ''
