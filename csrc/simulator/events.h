// What is to happen, the earliest first; of what happens at one moment, what was foretold first.
#pragma once
#include <algorithm>
#include <vector>

#include "max_min.h"

namespace gradwire_simulator {

struct Event {
  double at;
  int64_t number;  // in the order in which they were foretold
  int64_t kind, index, version;
};

class Events {
 public:
  bool empty() const { return heap_.empty(); }
  double next_at() const { return heap_.front().at; }

  void push(double at, int64_t kind, int64_t index, int64_t version = 0) {
    heap_.push_back({at, ++count_, kind, index, version});
    std::push_heap(heap_.begin(), heap_.end(), later);
  }

  Event pop() {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    const Event event = heap_.back();
    heap_.pop_back();
    return event;
  }

 private:
  static bool later(const Event& a, const Event& b) {
    return a.at != b.at ? a.at > b.at : a.number > b.number;
  }

  std::vector<Event> heap_;
  int64_t count_ = 0;
};

}  // namespace gradwire_simulator
