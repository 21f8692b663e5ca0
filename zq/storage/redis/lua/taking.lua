-- SPDX-License-Identifier: Apache-2.0
-- Removal and changes of messages.

---- part removing

-- Part of scripts that remove messages.

-- Removes messages from the lists of the claims in their states.
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

-- Subtracts messages that are about to be removed from the counters.
local function uncount(q, messages)
  local state = redis.call('HMGET', q.state, 'from', 'stored', 'bytes')
  if not state[1] then return end
  local from, stored, bytes = tonumber(state[1]), tonumber(state[2] or 0), tonumber(state[3] or 0)
  local left, left_bytes = stored, bytes
  for _, m in ipairs(messages) do
    if m.sequence > from then left, left_bytes = left - 1, left_bytes - OVERHEAD - m.size end
  end
  if left == stored then return end
  -- A server of an earlier version may have stored some of them in the meantime.
  if left <= 0 or left_bytes < 0 then left, left_bytes = math.max(0, left), 0 end
  redis.call('HSET', q.state, 'stored', left, 'bytes', left_bytes)
  add_usage(left - stored, left_bytes - bytes)
end

-- Removes messages permanently.
local function remove(q, messages, now)
  if #messages == 0 then return end
  uncount(q, messages)
  local is_grouped = messages[1].kind
  local places, members, ids, listed, changed, large, claimed = {}, {}, {}, {}, {}, {}, {}
  for i, m in ipairs(messages) do
    places[i], members[i], ids[i] = m.at, m.member, id_of(m)
    if m.state ~= '' then changed[#changed + 1] = m.member end
    if m.size >= LARGE then large[#large + 1] = m.member end
    if m.claim ~= '' then
      claimed[#claimed + 1] = m.member
    elseif m.is_listed and not is_grouped then
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
    if put('ZREM', q.claimed, claimed) < #claimed and not is_grouped then put('ZREM', q.avail, claimed) end
    remove_from_claims(q, messages)
  end
  if is_grouped then change_lines(q, now, messages, {}, load) end
  -- Redis does not remove an empty stream by itself.
  if redis.call('XLEN', q.stream) == 0 then redis.call('DEL', q.stream) end
end

---- part taking

-- Part of scripts that check whether messages may be taken.

-- Returns by member whether a commit will delete the message: the claim in its state no longer lists it.
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

local RESERVED = 1e15       -- score of messages that a commit will delete

-- Makes such messages count as claimed forever, so that they never become available.
local function reserve(q, members)
  local far = {}
  for i, member in ipairs(members) do far[2 * i - 1], far[2 * i] = RESERVED, member end
  put('ZADD', q.claimed, far)
  put('ZREM', q.avail, members)
end

---- part lapsing

-- Part of scripts that process lapsed claims.

-- Moves messages whose claims have ended from `claimed` to `avail`, or only in their lines. Returns whether the call
-- has processed its maximum number of messages.
local function lapse(q, now)
  local members = redis.call('ZRANGE', q.claimed, '-inf', now, 'BYSCORE', 'LIMIT', 0, STEPS)
  if #members == 0 then return false end
  local avail, is_grouped = {}, select(3, lane_of(q))
  for i, state in ipairs(is_grouped and {} or pick(q.states, members)) do
    avail[2 * i - 1], avail[2 * i] = string.format('%.0f', unpacked('>I8', state)), members[i]
  end
  put('ZADD', q.avail, avail)
  put('ZREM', q.claimed, members)
  return #members == STEPS
end

---- part choosing

-- Part of scripts that take ready messages.

-- Takes up to `limit` ready messages of the lane. `live`: the messages. `expired`: expired messages at the front, which
-- are removed. `more`: the call has skipped its maximum number of entries. `passed`: lower sequences that are not in
-- `live` will be before the head.
local function take_lane(q, head, last, limit, now)
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
  remove(q, expired, now)
  local more = not is_over and passed < last and #live < limit
  return { live = live, head = head, passed = passed, expired = #expired, more = more }
end

-- Takes ready messages of `avail` in the same way.
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
    remove(q, expired, now)
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

-- Returns up to `limit` ready messages in the order of (available, sequence), or in the order of `take_lines`, and
-- removes the expired ones at the front. Second result: whether the call has skipped its maximum number of expired
-- messages, so that there may be more. Third: the number of removed messages. Fourth: the lane, if the queue has one,
-- for `advance`.
local function take(q, limit, now)
  local is_much = lapse(q, now)
  local head, last, is_grouped = lane_of(q)
  if is_grouped then
    local found = take_lines(q, limit, now)
    return found.live, found.more, found.expired
  end
  local lane, listed, live = take_lane(q, head, last, limit, now), take_listed(q, limit, now), {}
  local at, other_at = 1, 1
  while #live < limit do
    local one, other = lane.live[at], listed.live[other_at]
    -- Messages not examined yet may precede those of the other order.
    if not one and (lane.more or not other) or not other and listed.more then break end
    if one and (not other or is_before(one, other)) then
      live[#live + 1], at = one, at + 1
    else
      live[#live + 1], other_at = other, other_at + 1
    end
  end
  return live, (is_much or lane.more or listed.more) and #live < limit, lane.expired + listed.expired, lane
end

-- Moves the head of the lane after the taken messages, which are the first messages in it.
local function advance(q, lane, taken)
  if not lane then return end
  local count = 0
  for _, m in ipairs(taken) do
    if not m.is_listed then count = count + 1 end
  end
  local left = lane.live[count + 1]
  local head = left and left.sequence - 1 or lane.passed
  if head > lane.head then redis.call('HSET', q.state, 'head', head) end
end

---- part changing

-- Part of scripts that change messages without moving them.

-- Adds a message to a claim that starts now. Extends its life if it would end earlier, unless `grace` is -1
-- (Lease.extend). `wait`: ms from the end of the claim until the message is available.
local function put_under(m, claim, now, lease, grace, wait)
  local ends = now + lease * 1000
  m.claim, m.claimed, m.lease, m.ends, m.available = claim, now, lease, ends, ends + wait
  if m.expires < ends and grace >= 0 then
    m.ttl, m.expires, m.extended = lease + grace, ends + grace * 1000, true
  end
end

-- Writes the states of changed messages and their index entries. `is_kept`: the message has its own end instead of its
-- claim's.
local function rewrite(q, messages, now)
  local states, avail, claimed, listed, free, expiry, texts, mixed = {}, {}, {}, {}, {}, {}, {}, {}
  local is_grouped = messages[1].kind
  if is_grouped then change_lines(q, now, messages, messages, load) end
  for i, m in ipairs(messages) do
    local n = 2 * i - 1
    if m.is_listed and not is_grouped then listed[#listed + 1] = m.member end
    m.state, m.is_listed = pack_state(m), true
    states[n], states[n + 1] = m.member, m.state
    local into, moment = claimed, math.min(m.ends, m.expires)
    if m.claim == '' then
      into, moment, free[#free + 1] = avail, m.available, m.member
    end
    texts[moment] = texts[moment] or string.format('%.0f', moment)
    if into == claimed or not is_grouped then
      into[#into + 1] = texts[moment]
      into[#into + 1] = m.member
    end
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
