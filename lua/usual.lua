--[[
  The usual decisions of a call: under buckets, fixed windows, penalties and sliding windows.

  Redis runs the whole text of a script at every call, and creating a function takes longer than making such a decision. So
  this part creates none but for sliding windows and shared keys, and no table that a call of one charge does not need. It
  repeats for the usual cases what include/, bucket_in_full/ and algorithm/ have as functions for every case. It leaves all others to the
  rest of the script: states with a text, of another format or of a clock that stepped back, products that are too large,
  denials that count for a penalty, keys of another type, and writes that fail.

  The numbers are specified under "The call" in lua/README.md. src/store/redis/script.rs replaces the names KIND and SIZE by
  numbers.
]]
-- uses: prelude
local keys = KEYS
local size = #keys
-- held       what the keys hold, if it is read with one command
-- plans      for decisions of several charges, by key: the state to write, or 0 for a denial; and, further on, its TTL, or true
--            to keep the one of the key
-- reply      the records; only: the only one
-- errors     of decisions
-- left       the decisions that are left, by the number of their first record; nil for none
-- sliding    the functions of the sliding window, once they are needed
-- sharing    of decisions that share keys, nil for none: `made`, how many of the run are made; `held`, what the keys hold, with
--            what is to be written; `ttls`, by key, its TTL, or true to keep the one of the key; `heads`, their first records;
--            `left`, by key, whether a decision on it is left: then so are the later ones; and `read`, the values by charge
-- shared     the numbers of the keys of the run's decisions, if they share keys
-- fits       by the number of its record, whether a guarantee fits; nil before the first one
local held, plans, reply, only, errors, left, sliding, sharing, shared, fits
-- The last charge of a run.
local last
-- Of the reply. Each key has one, unless decisions share keys or there are other decisions.
local count_of_records = size
if size > 1 then
  if size <= 3 then
    reply = { false, false, false }
  elseif others > SIZE.HEAD + 1 then
    held, reply = call('MGET', unpack(keys)), { unpack(keys) }
  end
end

local place = SIZE.HEAD + 1
while place < others do
  place = place + SIZE.RUN
  -- denied     the decisions of several charges that are denied, by the number of their first record; nil for none
  -- some_exist whether a key without a value may exist
  -- known_...  what is made of all keys without a state, if `is_known`
  local denied, some_exist, is_known, known_state, known_expiry, known_record
  -- The charge after which a decision's keys are written; 0 if others use them too, whose keys are written after all decisions.
  local writes_at = width
  last = before + decisions * width
  if width > 1 then
    if width > SIZE.SHARED then
      width, writes_at, reply = width - SIZE.SHARED, 0, reply or {}
      if not sharing then
        sharing = { made = 0, held = held or call('MGET', unpack(keys)), ttls = {}, heads = {}, left = {} }
        sharing.read = setmetatable({}, { __index = function(_, k)
          local q = shared[k]
          -- An empty value has no state in it, so the decision is left.
          return sharing.left[q] and '' or sharing.held[q]
        end })
      end
      held = sharing.read
      -- A decision of several charges is made before the next one.
      local made = sharing.made
      last = width > 1 and width or decisions
      shared = { struct.unpack('<' .. string.rep('H', last), request, before + 2 * width * made) }
      before, records = 0, records + width * made
      for head = records + 1, records + last, width do
        sharing.heads[#sharing.heads + 1] = head
      end
    end
    if not held then
      plans = { false, false, false, false, false, false }
    else
      plans = plans or { unpack(keys) }
      -- MGET has no value of a key of another type, and such a key must not be found after another one was charged.
      local absent, count = nil, 0
      for k = before + 1, last do
        if not held[k] then
          absent, count = absent or { unpack(keys) }, count + 1
          absent[count] = keys[shared and shared[k] or k]
        end
      end
      if absent then
        local key = absent[1]
        some_exist = call('EXISTS', key, unpack(absent, 2, count)) > 0
      end
    end
  end
  -- From here on: what to add to the number of a key to get that of its record.
  records = records - before
  local start, pass, i, is_pool = place, 1, 1, false
  while i <= width do
    if i > 1 or pass > 1 then
      cost, headroom, kind, first, second, third = struct.unpack('<dHBddd', request, place)
      is_known = nil
    end
    place = place + SIZE.CHARGE
    local is_guarantee
    if kind > KIND.SLIDING_WINDOW then
      local has_headroom = kind > KIND.WITH_HEADROOM
      kind = has_headroom and kind - KIND.WITH_HEADROOM or kind
      headroom = kind == KIND.PENALTY and 0 or headroom
      place = place + (kind == KIND.PENALTY and 24 or kind == KIND.DEBT and 8 or kind == KIND.CALENDAR and 16 or 0)
      if has_headroom then
        headroom, place = struct.unpack('<d', request, place)
      end
      if kind == KIND.GUARANTEE then
        is_guarantee, fits = true, fits or {}
      end
      -- Of a calendar, `second` is when the window of the call ends, and `third` when it starts.
      if kind == KIND.CALENDAR and (now < third or now >= second) then
        -- It is the next window, or the clock of the instance is wrong: the rest of the script knows the windows beside it.
        kind = 0
      end
    end
    -- The second pass reports the charges of denied decisions as they are: with a cost of 0.
    local charged = pass == 1 and cost or 0
    -- What must fit. A guarantee that fits lifts the headroom of the next charge, which is on its pool.
    local asked = charged > 0 and charged + headroom or 0
    for k = before + i, last, width do
      local r = records + k
      if pass == 1 or denied[r - i + 1] and plans[k] ~= 0 and (not is_guarantee or fits[r]) then
        if is_pool then
          asked = charged > 0 and charged + (fits[r - 1] and 0 or headroom) or 0
        end
        local key, value, state, expiry, record = keys[k], nil
        if held then
          value = held[k]
        else
          -- An error is a table. Its length is 0.
          value = try('GET', key)
        end
        if is_known and not value then
          -- Keys without a state have the same result.
          state, expiry, record = known_state, known_expiry, known_record
        else
          -- 0 for a denial, otherwise 1 and the units. If this stays nil, the decision is left. `mark` is the retry time of a
          -- denial, -1 for never; `kept` is when the key expires at the earliest.
          local granted
          local at, count, kept, text, remaining, reset, mark, lifetime, version
          -- The kind; 0 leaves the decision to the rest of the script.
          local usual = kind
          if value then
            if #value == SIZE.STATE or #value > SIZE.STATE and kind == KIND.SLIDING_WINDOW then
              version, at, count, kept = struct.unpack('<Bddd', value)
            end
            -- Other programs store bytes of any kind. The rest of NaN is not 0.
            if version ~= 2 or at > now or at < 0 or at % 1 ~= 0 or count < 0 or count >= 2^53 or count % 1 ~= 0 then
              usual = 0
            elseif is_guarantee and now - at >= 86400000000 then
              -- It may be forgotten.
              usual = 0
            end
          elseif some_exist or is_guarantee then
            usual = 0
          end
          if usual == KIND.BUCKET or usual == KIND.DEBT or usual == KIND.GUARANTEE then
            -- A bucket: the numbers are the period, its units and the burst; see include/bucket.lua and bucket_in_full/any_bucket.lua.
            local period, units, elapsed, product, drained = first, second, 0, 0, 0
            if at then
              -- Drain the whole periods that have passed; what is left of the time stays in `elapsed`.
              elapsed = (now - at) % period
              product = elapsed * units
              drained = (product - product % period) / period
              count = count - (now - at - elapsed) / period * units
              if count <= drained then
                count, elapsed, drained = 0, 0, 0
              end
            else
              count = 0
            end
            remaining = third - count + drained
            if remaining >= 0 then
              granted = 0
              if asked <= remaining then
                granted, count, remaining = 1 + cost, count + charged, remaining - charged
              elseif asked > third then
                mark = -1
              else
                mark = (count + asked - third) * period
                if mark < 2^53 then
                  local rest = mark % units
                  mark = (mark - rest) / units + (rest > 0 and 1 or 0) - elapsed
                else
                  granted = nil
                end
              end
              lifetime = count * period
              if lifetime >= 2^53 or product >= 2^53 then
                granted = nil
              end
              local rest = lifetime % units
              reset = (lifetime - rest) / units - elapsed
              if rest > 0 then
                reset = reset + 1
              end
              if reset < 0 then
                reset = 0
              end
              at, lifetime = now - elapsed, reset
              mark = mark or now + reset
              if is_guarantee then
                -- As in algorithm/guarantee.lua.
                lifetime, fits[r] = reset + 86400000000, granted ~= 0
              end
            end
          elseif usual == KIND.WINDOW or usual == KIND.CALENDAR then
            -- A fixed window: the numbers are the limit, the period and the offset, which is the period for anchored
            -- windows; see algorithm/fixed_window.lua. By the calendar: the limit, the end and the start of the window.
            local ends = second
            if usual == KIND.WINDOW then
              local starts = at or now
              if third < second then
                -- The first window of 1970 may start before 0.
                starts = now - (now - third) % second
                starts = starts > 0 and starts or 0
              end
              if not at or at < starts or starts + second <= now then
                at, count = now, 0
                starts = third < second and starts or now
              end
              ends = starts + second
            elseif not at or at < third then
              at, count = now, 0
            end
            remaining, lifetime = count < first and first - count or 0, ends - now
            if asked <= remaining then
              granted, count, remaining, mark = 1 + cost, count + charged, remaining - charged, at
            else
              granted, mark = 0, asked > first and -1 or lifetime
            end
            reset = count > 0 and lifetime or 0
          elseif usual == KIND.SLIDING_WINDOW then
            -- A sliding window, by its functions.
            sliding = sliding or sliding_window(true)
            text = value and #value > SIZE.STATE and string.sub(value, SIZE.STATE + 1) or nil
            local window, made, retry, delay = sliding.policy(first, second, third), nil
            local started, sum, cells = at, count, text
            -- Whether there was an error, then as under "The functions of an algorithm" in lua/README.md.
            made, retry, remaining, reset, delay, mark, lifetime, at, count, text =
              pcall(sliding.decide, window, asked, started, sum, cells)
            if asked > charged and made and retry == 0 then
              made, retry, remaining, reset, delay, mark, lifetime, at, count, text =
                pcall(sliding.decide, window, charged, started, sum, cells)
            end
            if made and retry == 0 then
              granted = 1 + cost
            elseif made then
              granted, mark = 0, retry
            end
          elseif usual == KIND.PENALTY then
            -- A penalty without bans, which admits. Nothing reads what else it reports; see algorithm/penalty.lua.
            granted, remaining, reset, mark = 1 + cost, 0, 0, 0
          end
          if granted then
            if granted == 0 then
              state = width > 1 and not is_guarantee and 0 or nil
            elseif lifetime and charged > 0 then
              if value and now + lifetime <= kept and (not text or #text + SIZE.STATE == #value) then
                state, expiry = pack('<ddd', at, count, kept), true
              else
                state = pack('<Bddd', 2, at, count, now + 2 * lifetime)
                -- As ttl() in include/state.lua.
                lifetime = 2 * lifetime + 1999
                expiry = manual_time == 0 and string.format('%d', (lifetime - lifetime % 1000) / 1000) or '3600000'
              end
              state = text and state .. text or state
            end
            if r == 1 then
              -- The reply starts with the time.
              record = pack('<dddddd', now, granted, remaining, reset, mark, 0)
            else
              record = pack('<ddddd', granted, remaining, reset, mark, 0)
              if not value and not is_pool then
                is_known, known_state, known_expiry, known_record = true, state, expiry, record
              end
            end
          end
        end
        if reply then
          reply[r] = record or ''
        else
          only = record
        end
        local head, is_left = r - i + 1, not record
        if width > 1 then
          plans[k], plans[size + k] = state, expiry
          if state == 0 then
            denied = denied or {}
            denied[head] = true
          end
          -- Penalties come after all other charges.
          is_left = is_left or left and left[head] or kind == KIND.PENALTY and denied and denied[head]
        elseif not state and held and not value and not shared then
          -- MGET has no value of a key of another type.
          is_left = is_left or call('EXISTS', key) == 1
        end
        if i ~= writes_at then
          if shared and i == width and not is_left and not (denied and denied[head]) then
            for j = k, k - i + 1, -1 do
              if j < k then
                state, expiry = plans[j], plans[size + j]
              end
              if state then
                local q = shared[j]
                sharing.held[q] = expiry == true and '\2' .. state or state
                -- A TTL that an earlier decision wants is longer than the one of the key.
                sharing.ttls[q] = expiry ~= true and expiry or sharing.ttls[q] or true
              end
            end
          end
        elseif not is_left and not (denied and denied[head]) then
          for j = k, k - i + 1, -1 do
            if j < k then
              key, state, expiry = keys[j], plans[j], plans[size + j]
            end
            if state and not is_left then
              if expiry == true then
                is_left = try('SETRANGE', key, '1', state) ~= #state + 1
              else
                local written
                if held and width == 1 and not value then
                  written = try('SET', key, state, 'PX', expiry, 'NX')
                else
                  written = try('SET', key, state, 'PX', expiry)
                end
                is_left = not written or written.err
              end
            end
          end
        end
        if is_left then
          left = left or {}
          left[head] = true
          if shared then
            for j = head - records, head - records + width - 1 do
              sharing.left[shared[j]] = true
            end
          end
        end
      end
    end
    i, is_pool = i + 1, is_guarantee
    if i > width and denied and pass == 1 then
      pass, i, place = 2, 1, start
    end
  end
  if shared then
    held, shared, sharing.made = sharing.held, nil, sharing.made + last / width
    if sharing.made < decisions then
      place = start - SIZE.RUN
    else
      place, sharing.made = place + 2 * width * decisions, 0
    end
  end
  if place < others then
    decisions, width, before, records, cost, headroom, kind, first, second, third = struct.unpack('<HHHHdHBddd', request, place)
  end
end
if sharing then
  -- Runs are in the order of their records.
  count_of_records = math.max(size, records + last)
  for q = 1, size do
    local key, expiry, written = keys[q], sharing.ttls[q], true
    if expiry == true then
      written = try('SETRANGE', key, '0', sharing.held[q]) == #sharing.held[q]
    elseif expiry then
      written = try('SET', key, sharing.held[q], 'PX', expiry)
      written = written and not written.err
    end
    if not written then
      -- Redis takes all writes of a script or none, so nothing is charged yet. Denials may depend on what is not written.
      left = left or {}
      for i = 1, #sharing.heads do
        left[sharing.heads[i]] = true
      end
      break
    end
  end
end
