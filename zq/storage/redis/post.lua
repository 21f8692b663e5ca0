#!lua
-- SPDX-License-Identifier: Apache-2.0
-- Stores messages behind all others of a queue, all or none; creates the queue if it is missing.
-- KEYS: project, queue. ARGV: now, queue name, then record and body of each message. Returns "".

local batch = batch_for(queue_at(4), ARGV[2], tonumber(ARGV[1]))
for at = 3, #ARGV, 2 do add(batch, ARGV[at], ARGV[at + 1]) end
store(batch)
return ''
