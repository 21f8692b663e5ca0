#!lua flags=no-writes
-- SPDX-License-Identifier: Apache-2.0
-- KEYS: project, queue. ARGV: now, how many entries to step over at most.
-- Returns counts of ready, delayed, claimed and expired messages, and since when the first one has been ready, -1 if
-- none is. Where more have expired than may be stepped over, those beyond count as if their moment had come.

local q, now, most = queue_at(4), number(), number()
local expired = redis.call('ZCOUNT', q.expiry, '-inf', now)
local living = redis.call('ZCARD', q.expiry) - expired
local claimed = redis.call('ZCOUNT', q.claimed, '(' .. now, '+inf')
local available = redis.call('ZCOUNT', q.avail, '-inf', now)

-- Expired messages whose moment has not come are in no other count.
local early = 0
for first = 0, math.min(expired, most) - 1, SLICE do
  local last = math.min(first + SLICE, expired, most) - 1
  for _, moment in ipairs(redis.call('ZMSCORE', q.avail, unpack(redis.call('ZRANGE', q.expiry, first, last)))) do
    if tonumber(moment) > now then early = early + 1 end
  end
end
local ready = math.max(0, available - expired + early)

-- The moment of the first in the order of claims that has not expired, or of the last one looked at.
local function first_ready()
  local moment, size = -1, 1
  local at = 0
  while at < math.max(1, math.min(available, most)) do
    local entries, members = redis.call('ZRANGE', q.avail, at, at + size - 1, 'WITHSCORES'), {}
    for i = 1, #entries, 2 do members[#members + 1] = entries[i] end
    for i, expires in ipairs(redis.call('ZMSCORE', q.expiry, unpack(members))) do
      moment = entries[2 * i]
      if tonumber(expires) > now then return moment end
    end
    at, size = at + size, 100
  end
  return moment
end

local waiting = math.max(0, living - claimed - ready)
return { ready, waiting, claimed, expired, ready > 0 and tonumber(first_ready()) or -1 }
