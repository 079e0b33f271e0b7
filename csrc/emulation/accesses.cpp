// See accesses.h; compiled without the hooks that tell of accesses.
#include "accesses.h"

#include <algorithm>
#include <deque>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "threads.h"

namespace emulation {
namespace accesses {

namespace {

// What a lane does: `meeting` counts the collectives and barriers that it has passed.
struct Event {
  const void* place;
  uintptr_t at;
  uint32_t meeting;
  uint16_t size;
  bool store, shared;
};
struct Part {
  int lane;
  uintptr_t at;
  int size;
};
// What lanes of a warp do at once.
struct Access {
  bool store, shared;
  std::vector<Part> parts;
};

struct Kernel {
  const void* code;
  Totals totals;
};
std::vector<Kernel> known;
Totals* running_totals;
std::vector<std::vector<Event>> events;  // of each thread of the block
std::vector<uint32_t> meetings;
const char* host_stack;

// The latest sectors that a warp has loaded, and which of their bytes.
class Cache {
 public:
  void load(const std::vector<std::pair<uintptr_t, uintptr_t>>& ranges, Totals& totals) {
    uint64_t fetched = 0, bytes = 0;
    for (const auto& range : ranges)
      for (uintptr_t sector = range.first / SECTOR; sector * SECTOR < range.second; ++sector) {
        const uintptr_t begin = std::max(range.first, sector * SECTOR) % SECTOR;
        const uintptr_t end = std::min(range.second, (sector + 1) * SECTOR) - sector * SECTOR;
        const uint32_t wanted = (uint32_t)(((uint64_t)1 << end) - ((uint64_t)1 << begin));
        if (!known_.count(sector)) {
          ++fetched;
          order_.push_back(sector);
        }
        uint32_t& had = known_[sector];
        bytes += (uint64_t)__builtin_popcount(wanted & ~had);
        had |= wanted;
      }
    while (order_.size() > KEPT) {
      known_.erase(order_.front());
      order_.pop_front();
    }
    totals.fetched += fetched;
    totals.new_bytes += fetched ? (bytes + SECTOR - 1) / SECTOR * SECTOR : bytes;
  }

 private:
  std::unordered_map<uintptr_t, uint32_t> known_;
  std::deque<uintptr_t> order_;
};

// Distinct bytes, as ranges that do not touch.
std::vector<std::pair<uintptr_t, uintptr_t>> ranges_of(const Access& access) {
  std::vector<std::pair<uintptr_t, uintptr_t>> all, merged;
  for (const Part& part : access.parts) all.push_back({part.at, part.at + (uintptr_t)part.size});
  std::sort(all.begin(), all.end());
  for (const auto& range : all) {
    if (!merged.empty() && range.first <= merged.back().second)
      merged.back().second = std::max(merged.back().second, range.second);
    else
      merged.push_back(range);
  }
  return merged;
}

void count_sectors(const Access& access, Cache& cache) {
  const auto ranges = ranges_of(access);
  uint64_t sectors = 0, bytes = 0;
  uintptr_t last = 0;
  for (const auto& range : ranges) {
    bytes += range.second - range.first;
    const uintptr_t from = std::max(range.first / SECTOR, last), to = (range.second - 1) / SECTOR + 1;
    if (to > from) sectors += to - from;
    last = to;
  }
  const int direction = access.store ? STORE : LOAD;
  ++running_totals->requests[direction];
  running_totals->touched[direction] += sectors;
  running_totals->fewest[direction] += (bytes + SECTOR - 1) / SECTOR;
  if (!access.store) cache.load(ranges, *running_totals);
}

void count_turns(const Access& access) {
  int widest = BANK_BYTES;
  for (const Part& part : access.parts) widest = std::max(widest, part.size);
  const int lanes = LANES * BANK_BYTES / std::min(widest, 16);  // that are served at a time
  const int direction = access.store ? STORE : LOAD;
  uint64_t& turns = (access.shared ? running_totals->shared_turns : running_totals->turns)[direction];
  uint64_t& fewest =
      (access.shared ? running_totals->fewest_shared_turns : running_totals->fewest_turns)[direction];
  for (int first = 0; first < LANES; first += lanes) {
    std::vector<uintptr_t> words;
    for (const Part& part : access.parts)
      if (part.lane >= first && part.lane < first + lanes)
        for (uintptr_t word = part.at / BANK_BYTES; word * BANK_BYTES < part.at + (uintptr_t)part.size;
             ++word)
          words.push_back(word);
    if (words.empty()) continue;
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    uint64_t of_bank[BANKS] = {};
    for (uintptr_t word : words) ++of_bank[word % BANKS];
    turns += *std::max_element(of_bank, of_bank + BANKS);
    ++fewest;
  }
}

// Counts what a warp does from one meeting of its lanes to the next; `next` is where each lane's events go
// on.
void count_stretch(int warp, uint32_t meeting, std::vector<size_t>& next, Cache& cache) {
  std::vector<Access> all;
  std::map<std::pair<const void*, int>, size_t> index;  // by place, and how often a lane has been there
  for (int lane = 0; lane < LANES; ++lane) {
    const std::vector<Event>& own = events[warp * LANES + lane];
    std::map<const void*, int> visits;
    for (size_t& i = next[lane]; i < own.size() && own[i].meeting == meeting; ++i) {
      const Event& event = own[i];
      // A place may be told of twice, where a vector is copied from memory to memory.
      const void* const place = (const char*)event.place + (event.store ? 1 : 0);
      const std::pair<const void*, int> key(place, visits[place]++);
      const auto found = index.insert({key, all.size()});
      if (found.second) all.push_back({event.store, event.shared, {}});
      all[found.first->second].parts.push_back({lane, event.at, event.size});
    }
  }
  for (const Access& access : all) {
    count_turns(access);
    if (!access.shared) count_sectors(access, cache);
  }
}

bool within(const void* at, const void* begin, size_t bytes) {
  return (size_t)((const char*)at - (const char*)begin) < bytes;
}
template <class T>
bool within(const void* at, const std::vector<T>& memory) {
  return within(at, memory.data(), memory.size() * sizeof(T));
}

extern "C" __attribute__((visibility("hidden"))) const char __ehdr_start, _end;

bool is_shared(const void* at) {
  static size_t last;
  if (last < shared.size() && within(at, shared[last].memory, shared[last].bytes)) return true;
  for (last = 0; last < shared.size(); ++last)
    if (within(at, shared[last].memory, shared[last].bytes)) return true;
  return false;
}

// Registers and parameters on a device: a thread's stack, what the launch has on the host's. And what the
// emulation itself has.
bool is_none(const void* at) {
  return within(at, threads[current].stack.get(), STACK) || within(at, host_stack, 1 << 20) ||
         within(at, &__ehdr_start, (size_t)(&_end - &__ehdr_start)) || within(at, threads) ||
         within(at, slots) || within(at, warp_barriers) || within(at, shared);
}

}  // namespace

void start_launch(const void* kernel) {
  host_stack = (const char*)__builtin_frame_address(0);  // what calls this lies above
  auto found = std::find_if(known.begin(), known.end(), [&](const Kernel& k) { return k.code == kernel; });
  if (found == known.end()) found = known.insert(known.end(), {kernel, {}});
  running_totals = &found->totals;
}
void start_block(int size) {
  events.assign(size, {});
  meetings.assign(size, 0);
}
void end_block() {
  for (int warp = 0; warp < (int)events.size() / LANES; ++warp) {
    Cache cache;
    std::vector<size_t> next(LANES, 0);
    for (;;) {
      uint32_t meeting = ~0u;
      for (int lane = 0; lane < LANES; ++lane) {
        const std::vector<Event>& own = events[warp * LANES + lane];
        if (next[lane] < own.size()) meeting = std::min(meeting, own[next[lane]].meeting);
      }
      if (meeting == ~0u) break;
      count_stretch(warp, meeting, next, cache);
    }
  }
}
void pass_collective(int thread) { ++meetings[thread]; }

void note(const void* at, size_t size, Direction direction, const void* place) {
  if (!races::running) return;
  const bool in_shared = is_shared(at);
  if (!in_shared && is_none(at)) return;
  events[current].push_back(
      {place, (uintptr_t)at, meetings[current], (uint16_t)size, direction == STORE, in_shared});
}

void forget() { known.clear(); }
int kernels() { return (int)known.size(); }
const Totals& totals_of(int kernel, const void** code) {
  *code = known[kernel].code;
  return known[kernel].totals;
}

}  // namespace accesses
}  // namespace emulation
