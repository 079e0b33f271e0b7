// Background traffic: other jobs' endless ring all-reduces on the same links. Flow job * size + rank is what
// a rank's process of a job sends its right neighbour.
#pragma once
#include <vector>

#include "simulator.h"

namespace gradwire_simulator {

class Background {
 public:
  explicit Background(const gradwire_simulation& args)
      : args_(args), steps_((size_t)(args.jobs * args.size)), open_(steps_.size(), 2) {}

  int64_t flows() const { return (int64_t)steps_.size(); }
  int64_t route(int64_t flow) const { return args_.routes - args_.size + flow % args_.size; }
  double bytes(int64_t flow) const {
    return steps_[(size_t)flow] ? args_.chunk : args_.first_chunks[flow / args_.size];
  }

  // A chunk has come through: the flows that begin with that; valid until the next call.
  const std::vector<int64_t>& arrived(int64_t flow) {
    started_.clear();
    const int64_t job = flow / args_.size, rank = flow % args_.size;
    for (const int64_t end : {rank, (rank + 1) % args_.size})
      if (--open_[(size_t)(job * args_.size + end)] == 0) next_step(job, end);
    return started_;
  }

 private:
  void next_step(int64_t job, int64_t rank) {
    const int64_t base = job * args_.size, own = base + rank;
    const int64_t left = base + (rank + args_.size - 1) % args_.size, right = base + (rank + 1) % args_.size;
    ++steps_[(size_t)own];
    open_[(size_t)own] = 2;
    if (steps_[(size_t)right] == steps_[(size_t)own]) started_.push_back(own);
    if (steps_[(size_t)left] == steps_[(size_t)own]) started_.push_back(left);
  }

  const gradwire_simulation& args_;
  std::vector<int64_t> steps_;
  std::vector<int> open_;
  std::vector<int64_t> started_;
};

}  // namespace gradwire_simulator
