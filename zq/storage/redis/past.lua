-- SPDX-License-Identifier: Apache-2.0
-- Part of scripts that read the history, behind finishing.lua. A reply holds for each record what PAST says, the
-- message's record, length of the body, body; for a living message zeros instead of the first.

local LIVING = struct.pack(PAST, 0, 0, 0, 0)

local function is_kept(record, now)
  local _, _, _, expires = struct.unpack(PAST, record)
  return expires > now
end

-- A reply of the records at these places that still are kept.
local function tell_past(h, places, now)
  local shown, records = {}, {}
  for i, record in ipairs(pick(h.finished, places)) do
    if is_kept(record, now) then shown[#shown + 1], records[#records + 1] = places[i], record end
  end
  return answer(records, pick(h.remains, shown), {})
end
