#!lua flags=no-writes
-- SPDX-License-Identifier: Apache-2.0
-- KEYS: project, queue. ARGV: now, sequences above and below which the oldest and the newest are to be sought.
-- Returns counts of claimed and free messages, then for oldest and newest the record or "" and, if so many had expired
-- that this call has looked enough, the sequence to go on from, else 0.

local q, now = queue_at(4), tonumber(ARGV[1])

-- The first unexpired message from a sequence on, ascending or (`...` = 'REV') descending.
local function edge(from, to, ...)
  local steps, want = 0, 1
  while true do
    local arguments = { ... }
    for _, argument in ipairs({ 'LIMIT', steps, want }) do arguments[#arguments + 1] = argument end
    local members = redis.call('ZRANGE', q.order, from, to, 'BYSCORE', unpack(arguments))
    local last
    for _, m in ipairs(load(q, members)) do
      if m.expires > now then return m.record, 0 end
      last = m.sequence
    end
    steps = steps + #members
    if #members < want then return '', 0 end
    if steps >= STEPS then return '', last end
    want = 100
  end
end

local claimed = redis.call('ZCOUNT', q.claimed, '(' .. ARGV[1], '+inf')
local total = redis.call('ZCARD', q.expiry) - redis.call('ZCOUNT', q.expiry, '-inf', now)
local oldest, above = edge('(' .. ARGV[2], '+inf')
local newest, below = edge('(' .. ARGV[3], '-inf', 'REV')
return { claimed, total - claimed, oldest, above, newest, below }
