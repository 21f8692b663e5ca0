-- SPDX-License-Identifier: Apache-2.0
-- Grouped queues: each message group has a line of messages, and one entry in `avail`.

---- part lines

-- Part of scripts that change the contents of queues. A message of a grouped queue has a `kind`. Its place in the
-- sorted set `line` consists of 64 bits of a hash of the group's name, in a fair queue its available-at, and its
-- sequence. The first place of a line is its head. The entry of the line consists of the head's sequence and the hash.

local FAIR = 3              -- kind of a message whose queue's groups take turns; 2: the groups are ordered

-- Returns the optional fields of an entry, which has `more`: creation time or 0, checksum, time of the first claim in
-- the former queue, number of bytes of attributes after the body, and group.
local function more_of(m)
  local id, client = struct.unpack('>I2I2', m.value, SIZES_AT)
  local at = ENTRY_SIZE + id + client + 1
  local told, _, checksum, origin, reason, text = struct.unpack(MORE, m.value, at)
  local tail, past = text + checksum + origin + reason, at + m.more
  local first, attributes, name = 0, 0, past
  if tail < past then first, attributes, name = struct.unpack(TAIL, m.value, tail) end
  return told, string.sub(m.value, text, text + checksum - 1), first, attributes, string.sub(m.value, name, past - 1)
end

-- Returns the time of a message's first claim in this queue, or in the queue from which it was buried; 0 = never.
local function first_claimed_of(m)
  if m.first > 0 or m.more == 0 then return m.first end
  local id, client = struct.unpack('>I2I2', m.value, SIZES_AT)
  local at = ENTRY_SIZE + id + client + 1
  local _, _, checksum, origin, reason, text = struct.unpack(MORE, m.value, at)
  local tail = text + checksum + origin + reason
  return tail < at + m.more and struct.unpack('>I8', m.value, tail) or 0
end

-- Changes lines and their entries; all other code calls this function. `left`: messages that leave the places at which
-- they were read. `joined`: messages at the places of their current states. Many messages are in both. `load` reads
-- heads that are in neither. The `line` field of messages that `take_lines` read avoids lookups and is consumed. `lay`:
-- the available-at of a message at the time of the read, if its state has changed. If a group of an ordered queue gets
-- a new head that is ready, waiting requests are notified; `q.full` is the name of the queue.
local function change_lines(q, now, left, joined, load)
  local lines, by_key, hashes = {}, {}, {}

  -- Returns the hash of a message's group.
  local function hash_of(m)
    if m.line then return m.line.key end
    local group = m.more > 0 and select(5, more_of(m)) or ''
    if not hashes[group] then
      local digest = redis.sha1hex(group)
      local high, low = tonumber(string.sub(digest, 1, 8), 16), tonumber(string.sub(digest, 9, 16), 16)
      hashes[group] = struct.pack('>I4I4', high, low)
    end
    return hashes[group]
  end

  local function moment_of(m) return string.format('%.0f', math.max(now, math.min(m.available, m.expires))) end

  -- If no message moves, only entries of heads change, and the first message of each line that was read may be its
  -- head. A command has at most SLICE arguments.
  if left == joined and #left > 0 and left[1].kind ~= FAIR and #left <= SLICE / 2 then
    local entries, last = {}, nil
    for _, m in ipairs(left) do
      if not m.line or m.line ~= last then
        entries[#entries + 1] = moment_of(m)
        entries[#entries + 1] = m.member .. hash_of(m)
      end
      last = m.line
    end
    redis.call('ZADD', q.avail, 'XX', unpack(entries))
    return
  end

  local function line_of(m)
    local key = hash_of(m)
    local line = by_key[key]
    if not line then
      line = { key = key, kind = m.kind, was = {}, is = {} }
      if m.line then line.places, m.line.places = m.line.places, nil end
      lines[#lines + 1], by_key[key] = line, line
    end
    return line
  end

  local function place_at(line, m, available)
    return line.key .. (line.kind == FAIR and struct.pack('>I8', available) or '') .. m.member
  end

  local function first_of(line)
    return redis.call('ZRANGE', q.line, '[' .. line.key, '[' .. line.key .. '\255', 'BYLEX', 'LIMIT', 0, 1)[1]
  end

  -- Returns whether a message's place precedes another one in its line. Lua compares strings by the server's locale, so
  -- they must not be compared directly.
  local function is_ahead(line, m, place)
    local at, available = #line.key + 1, 0
    if line.kind == FAIR then available, at = struct.unpack('>I8', place, at) end
    if line.kind == FAIR and m.available ~= available then return m.available < available end
    return m.sequence < struct.unpack(MEMBER, place, at)
  end

  for _, m in ipairs(left) do
    local line, place = line_of(m), m.place
    if not place then
      local available = m.lay or struct.unpack('>I8', m.state ~= '' and m.state or m.value, m.state ~= '' and 1 or 8)
      place = place_at(line, m, available)
    end
    line.was[place] = true
  end
  for _, m in ipairs(joined) do
    local line = line_of(m)
    local place = place_at(line, m, m.available)
    line.is[place], m.place, m.lay = m, place, nil
    if not line.was[place] and (not line.least or is_ahead(line, m, line.least)) then line.least = place end
  end

  local gone, come = {}, {}
  for _, line in ipairs(lines) do
    if line.places then line.before = line.places[1] else line.before = first_of(line) end
    for place in pairs(line.was) do
      if not line.is[place] then gone[#gone + 1] = place end
    end
    for place in pairs(line.is) do
      if not line.was[place] then
        come[#come + 1] = 0
        come[#come + 1] = place
      end
    end
  end
  put('ZREM', q.line, gone)
  put('ZADD', q.line, come)

  -- Returns the first remaining place of a line.
  local function staying(line)
    for _, place in ipairs(line.places or { line.before }) do
      if not line.was[place] or line.is[place] then return place end
    end
  end

  local former, heads, unread = {}, {}, {}
  for _, line in ipairs(lines) do
    local before, head, least = line.before, staying(line), line.least
    if before and not head and not (line.places and line.places.is_all) then
      head = first_of(line)
    elseif least and (not head or is_ahead(line, line.is[least], head)) then
      head = least
    end
    if before and before ~= head then former[#former + 1] = string.sub(before, -MEMBER_SIZE) .. line.key end
    if head and (head ~= before or line.is[head]) then
      local found = { member = string.sub(head, -MEMBER_SIZE), line = line, m = line.is[head] }
      line.head = head
      heads[#heads + 1] = found
      local is_free = line.kind == FAIR and struct.unpack('>I8', head, #line.key + 1) <= now
      if not found.m and not is_free then unread[#unread + 1] = found.member end
    end
  end
  local read, entries, is_news = {}, {}, false
  for _, m in ipairs(#unread > 0 and load(q, unread) or {}) do read[m.member] = m end
  for i, head in ipairs(heads) do
    local m = head.m or read[head.member] or { available = now, expires = now }
    entries[2 * i - 1], entries[2 * i] = moment_of(m), head.member .. head.line.key
    local line = head.line
    is_news = is_news or line.kind ~= FAIR and line.before and line.before ~= line.head and m.available <= now
  end
  put('ZREM', q.avail, former)
  put('ZADD', q.avail, entries)
  if is_news then notify(q.full) end
end

---- part walking

-- Part of scripts that take messages of grouped queues.

-- Takes up to `limit` ready messages, line by line in the order of entries. `live`: from each line, the messages before
-- the first one that is not ready. `expired`: expired messages at the front, which are removed together with messages
-- set aside. `more`: the call has skipped its maximum number of entries.
local function take_lines(q, limit, now)
  local live, expired, taken, empty, steps, rank = {}, {}, {}, {}, 0, 0
  local lines, want, is_all, is_done = {}, limit, false, false

  -- Moves messages that a commit will delete to the ends of lines. In an ordered queue, they block their lines until
  -- then.
  local function put_aside(messages)
    for _, m in ipairs(messages) do m.available, m.ends = RESERVED, RESERVED end
    change_lines(q, now, messages, messages, load)
    local states, claimed = {}, {}
    for i, m in ipairs(messages) do
      states[2 * i - 1], states[2 * i] = m.member, pack_state(m)
      claimed[2 * i - 1], claimed[2 * i] = RESERVED, m.member
    end
    put('HSET', q.states, states)
    put('ZADD', q.claimed, claimed)
  end

  -- Returns up to `want` members of lines: of lines that were begun, then of the next entries. `places`: the first
  -- places of a line, one more than wanted.
  local function look()
    local at, members, line_at, place_of = 0, {}, {}, {}
    while #members < want do
      at = at + 1
      if not lines[at] then
        local count = want - #members
        local entries = redis.call('ZRANGE', q.avail, '-inf', now, 'BYSCORE', 'LIMIT', rank, count)
        rank, is_all = rank + #entries, #entries < count
        for i, entry in ipairs(entries) do
          lines[at + i - 1] = { key = cut(entry, MEMBER_SIZE + 1), entry = entry }
        end
        if #entries == 0 then break end
      end
      local line, count = lines[at], want - #members
      local from, to = line.from or '[' .. line.key, '[' .. line.key .. '\255'
      local places = redis.call('ZRANGE', q.line, from, to, 'BYLEX', 'LIMIT', 0, count + 1)
      places.is_all = #places <= count
      for i = 1, math.min(#places, count) do
        members[#members + 1] = cut(places[i], -MEMBER_SIZE)
        line_at[#members], place_of[#members] = line, places[i]
      end
      if #places == 0 and line.entry then empty[#empty + 1] = line.entry end
      line.places = line.entry and places
      line.entry, line.is_read, line.from = nil, places.is_all, '(' .. (places[count] or '')
    end
    return members, line_at, place_of
  end

  local function meet(m, line, place, is_taken)
    m.line, m.place = line, place
    if m.expires > now and m.available <= now and not is_taken then
      live[#live + 1] = m
      return
    end
    steps = steps + 1
    if m.expires <= now then
      expired[#expired + 1] = m
    elseif is_taken then
      taken[#taken + 1] = m
      line.is_over = m.kind ~= FAIR
    else
      line.is_over = true
    end
  end

  repeat
    local members, line_at, place_of = look()
    local messages, left = load(q, members, 1), {}
    assert(#messages == #members, 'what is to be claimed has no entry')
    local kept = reserved(q, messages)
    for i, m in ipairs(messages) do
      if #live == limit then break end
      if not line_at[i].is_over then meet(m, line_at[i], place_of[i], kept[m.member]) end
    end
    for _, line in ipairs(lines) do
      if not line.is_over and not line.is_read then left[#left + 1] = line end
    end
    lines, want = left, math.max(limit - #live, 100)
    is_done = #live == limit or is_all and #lines == 0
  until is_done or steps >= STEPS
  put('ZREM', q.avail, empty)
  remove(q, expired, now)
  put_aside(taken)
  return { live = live, expired = #expired + #taken, more = not is_done }
end
