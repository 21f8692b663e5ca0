#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- Removes ready messages from the front. KEYS: project, queue. ARGV: now, limit.
-- Returns whether to look again (1 byte): too many had expired in front; records with bodies.

local q = queue_at(4)
local found, more = take(q, tonumber(ARGV[2]), tonumber(ARGV[1]))
local reply = answer_with(q, found, { more and '\1' or '\0' })
remove(q, found)
return reply
