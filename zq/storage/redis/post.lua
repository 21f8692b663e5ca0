#!lua
-- SPDX-License-Identifier: Apache-2.0
-- Stores messages behind all others of a queue, all or none; creates the queue if it is missing.
-- KEYS: project, queue. ARGV: now, queue name, expected metadata ("" = any), then record and body of each message.
-- Returns "", or the metadata if they are others; then nothing is stored.

if ARGV[3] ~= '' then
  local metadata = redis.call('HGET', KEYS[2], ARGV[2]) or '{}'
  if metadata ~= ARGV[3] then return metadata end
end
local batch = batch_for(queue_at(4), ARGV[2], tonumber(ARGV[1]))
for at = 4, #ARGV, 2 do add(batch, ARGV[at], ARGV[at + 1]) end
store(batch)
return ''
