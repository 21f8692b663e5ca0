-- SPDX-License-Identifier: Apache-2.0
-- How messages leave a queue, and change in it.

---- part removing

-- Part of scripts that remove messages.

-- Removes messages from the lists of the claims that their states name.
local function remove_from_claims(q, messages)
  local claims = {}
  for _, m in ipairs(messages) do
    if m.claim ~= '' then
      claims[m.claim] = claims[m.claim] or {}
      table.insert(claims[m.claim], m.member)
    end
  end
  for claim, members in pairs(claims) do
    local list, gone, kept = redis.call('HGET', q.claims, claim) or '', {}, {}
    if list ~= table.concat(members) then
      for _, member in ipairs(members) do gone[member] = true end
      for _, member in ipairs(members_in(list)) do
        if not gone[member] then kept[#kept + 1] = member end
      end
    end
    if #kept > 0 then
      redis.call('HSET', q.claims, claim, table.concat(kept))
    else
      redis.call('HDEL', q.claims, claim, HOLDER .. claim, MIXED .. claim)
    end
  end
end

-- Of messages that are about to go.
local function uncount(q, messages)
  local state = redis.call('HMGET', q.state, 'from', 'stored', 'bytes')
  if not state[1] then return end
  local from, stored, bytes = tonumber(state[1]), tonumber(state[2] or 0), tonumber(state[3] or 0)
  local left, left_bytes = stored, bytes
  for _, m in ipairs(messages) do
    if m.sequence > from then left, left_bytes = left - 1, left_bytes - OVERHEAD - m.size end
  end
  if left == stored then return end
  -- A server of an earlier version may have stored some of them meanwhile.
  if left <= 0 or left_bytes < 0 then left, left_bytes = math.max(0, left), 0 end
  redis.call('HSET', q.state, 'stored', left, 'bytes', left_bytes)
  add_usage(left - stored, left_bytes - bytes)
end

-- Takes messages away for good.
local function remove(q, messages)
  if #messages == 0 then return end
  uncount(q, messages)
  local places, members, ids, listed, changed, large, claimed = {}, {}, {}, {}, {}, {}, {}
  for i, m in ipairs(messages) do
    places[i], members[i], ids[i] = m.at, m.member, id_of(m)
    if m.state ~= '' then changed[#changed + 1] = m.member end
    if m.size >= LARGE then large[#large + 1] = m.member end
    if m.claim ~= '' then
      claimed[#claimed + 1] = m.member
    elseif m.is_listed then
      listed[#listed + 1] = m.member
    end
  end
  put('XDEL', q.stream, places)
  put('ZREM', q.expiry, members)
  put('HDEL', q.ids, ids)
  put('ZREM', q.avail, listed)
  put('HDEL', q.states, changed)
  put('HDEL', q.bodies, large)
  if #claimed > 0 then
    if put('ZREM', q.claimed, claimed) < #claimed then put('ZREM', q.avail, claimed) end
    remove_from_claims(q, messages)
  end
  -- An empty stream does not go by itself.
  if redis.call('XLEN', q.stream) == 0 then redis.call('DEL', q.stream) end
end

---- part taking

-- Part of scripts that judge whether messages may be taken.

-- Those of the messages that a commit is going to delete, by member: their states name claims on whose lists they are
-- not any more.
local function reserved(q, messages)
  local found, lists = {}, {}
  for _, m in ipairs(messages) do
    if m.claim ~= '' then
      lists[m.claim] = lists[m.claim] or on_list(q, m.claim)
      found[m.member] = not lists[m.claim][m.member]
    end
  end
  return found
end

local RESERVED = 1e15       -- score of what a commit is going to delete

-- Has such messages count as claimed for ever, and never become available.
local function reserve(q, members)
  local far = {}
  for i, member in ipairs(members) do far[2 * i - 1], far[2 * i] = RESERVED, member end
  put('ZADD', q.claimed, far)
  put('ZREM', q.avail, members)
end

---- part lapsing

-- Part of scripts that see claims lapse.

-- Has messages whose claims have ended in `avail` instead of `claimed`; whether so many had that this call has done
-- enough.
local function lapse(q, now)
  local members = redis.call('ZRANGE', q.claimed, '-inf', now, 'BYSCORE', 'LIMIT', 0, STEPS)
  if #members == 0 then return false end
  local avail = {}
  for i, state in ipairs(pick(q.states, members)) do
    avail[2 * i - 1], avail[2 * i] = string.format('%.0f', unpacked('>I8', state)), members[i]
  end
  put('ZADD', q.avail, avail)
  put('ZREM', q.claimed, members)
  return #members == STEPS
end

---- part choosing

-- Part of scripts that take ready messages.

-- Up to `limit` ready messages of the lane in `live`; the expired ones in front are removed, which makes `expired`.
-- `more`: so much was stepped over that this call has done enough. `passed`: what has no higher sequence and is not in
-- `live` is behind the head from now on.
local function take_lane(q, limit, now)
  local head, last = lane_of(q)
  local live, expired, passed, steps, want, is_over = {}, {}, head, 0, limit, false
  while passed < last and #live < limit and not is_over and steps < limit + STEPS do
    local found, position = lane_from(q, passed + 1, last, want)
    for _, m in ipairs(found) do
      is_over = m.available > now or #live == limit
      if is_over then
        position = m.sequence - 1
        break
      end
      local into = m.expires > now and live or expired
      into[#into + 1] = m
    end
    passed, steps, want = position, steps + want, 100
  end
  remove(q, expired)
  local more = not is_over and passed < last and #live < limit
  return { live = live, head = head, passed = passed, expired = #expired, more = more }
end

-- The same of `avail`.
local function take_listed(q, limit, now)
  local live, stepped, want = {}, 0, limit
  while true do
    local members = redis.call('ZRANGE', q.avail, '-inf', now, 'BYSCORE', 'LIMIT', #live, want)
    local expired, taken, messages = {}, {}, load(q, members)
    assert(#messages == #members, 'what is to be claimed has no entry')
    local kept = reserved(q, messages)
    for _, m in ipairs(messages) do
      if kept[m.member] then
        taken[#taken + 1] = m.member
      elseif m.expires <= now then
        expired[#expired + 1] = m
      elseif #live < limit then
        live[#live + 1] = m
      end
    end
    remove(q, expired)
    reserve(q, taken)
    stepped = stepped + #expired + #taken
    local is_over = #live == limit or #members < want
    if is_over or stepped >= STEPS then return { live = live, more = not is_over, expired = stepped } end
    want = math.max(limit - #live, 100)
  end
end

local function is_before(one, other)
  if one.available ~= other.available then return one.available < other.available end
  return one.sequence < other.sequence
end

-- Up to `limit` ready messages in the order of (available, sequence). The expired ones in front are removed.
-- Second result: there may be more, but so many had expired that this call has done enough. Third: how many it removed.
-- Fourth: the lane, for `advance`.
local function take(q, limit, now)
  local is_much = lapse(q, now)
  local lane, listed, live = take_lane(q, limit, now), take_listed(q, limit, now), {}
  local at, other_at = 1, 1
  while #live < limit do
    local one, other = lane.live[at], listed.live[other_at]
    -- What was not looked at may come before what the other order has.
    if not one and (lane.more or not other) or not other and listed.more then break end
    if one and (not other or is_before(one, other)) then
      live[#live + 1], at = one, at + 1
    else
      live[#live + 1], other_at = other, other_at + 1
    end
  end
  return live, (is_much or lane.more or listed.more) and #live < limit, lane.expired + listed.expired, lane
end

-- Moves the head of the lane behind what is taken of it: the first of what it was found to hold.
local function advance(q, lane, taken)
  local count = 0
  for _, m in ipairs(taken) do
    if not m.is_listed then count = count + 1 end
  end
  local left = lane.live[count + 1]
  local head = left and left.sequence - 1 or lane.passed
  if head > lane.head then redis.call('HSET', q.state, 'head', head) end
end

---- part changing

-- Part of scripts that change messages which stay where they are.

-- Puts a message under a claim that starts now, and lengthens a life that would end before it, unless `grace` is -1
-- (Lease.extend). `wait`: ms from the claim's end until it is available.
local function put_under(m, claim, now, lease, grace, wait)
  local ends = now + lease * 1000
  m.claim, m.claimed, m.lease, m.ends, m.available = claim, now, lease, ends, ends + wait
  if m.expires < ends and grace >= 0 then
    m.ttl, m.expires, m.extended = lease + grace, ends + grace * 1000, true
  end
end

-- Writes the states of changed messages, and their index entries. `is_kept`: its end is its own, not its claim's.
local function rewrite(q, messages)
  local states, avail, claimed, listed, free, expiry, texts, mixed = {}, {}, {}, {}, {}, {}, {}, {}
  for i, m in ipairs(messages) do
    local n = 2 * i - 1
    if m.is_listed then listed[#listed + 1] = m.member end
    m.state, m.is_listed = pack_state(m), true
    states[n], states[n + 1] = m.member, m.state
    local into, moment = claimed, math.min(m.ends, m.expires)
    if m.claim == '' then
      into, moment, free[#free + 1] = avail, m.available, m.member
    end
    texts[moment] = texts[moment] or string.format('%.0f', moment)
    into[#into + 1] = texts[moment]
    into[#into + 1] = m.member
    if m.is_kept or m.expires < m.ends then
      mixed[#mixed + 1] = MIXED .. m.claim
      mixed[#mixed + 1] = ''
    end
    if m.extended then
      expiry[#expiry + 1] = m.expires
      expiry[#expiry + 1] = m.member
    end
  end
  put('HSET', q.states, states)
  put('HSET', q.claims, mixed)
  put('ZREM', q.avail, listed)
  put('ZADD', q.avail, avail)
  put('ZADD', q.claimed, claimed)
  put('ZREM', q.claimed, free)
  put('ZADD', q.expiry, expiry)
end
