// What a worker expects, from what it has seen: when its gradients appear, when the next forward passes could
// take them, and how fast its broadcasts are. Times are seconds from the start of its own backward pass.
#pragma once
#include <algorithm>
#include <limits>
#include <vector>

#include "rounds.h"

namespace gradwire_simulator {

constexpr double unknown = std::numeric_limits<double>::quiet_NaN();

class Profile {
 public:
  explicit Profile(const gradwire_training& args)
      : args_(args),
        rates_((size_t)args.workers, unknown),
        appears_((size_t)(args.workers * args.blocks), unknown),
        ready_((size_t)(args.workers * args.blocks), unknown),
        told_((size_t)(2 * args.workers * args.blocks), unknown) {}

  // Bits per second of a worker's broadcasts; NaN before the first.
  double rate(int64_t worker) const { return rates_[(size_t)worker]; }
  double appears(int64_t worker, int64_t block) const { return appears_[at(worker, block)]; }

  void saw_rate(int64_t worker, double bits_per_second) { average(rates_[(size_t)worker], bits_per_second); }
  void saw_gradient(int64_t worker, int64_t block, double after) {
    average(appears_[at(worker, block)], after);
  }
  void saw_ready(int64_t worker, int64_t block, double after) { average(ready_[at(worker, block)], after); }

  // A worker begins its backward pass: it tells the others with its gradients when it expects its forward
  // passes.
  void tell(int64_t worker, int64_t round) {
    for (int64_t block = 0; block < args_.blocks; ++block)
      told_[told_at(worker, round, block)] = ready_[at(worker, block)];
  }

  // The last that any worker told in the round before; NaN where one knew nothing.
  double deadline(int64_t round, int64_t block) const {
    double last = 0;
    for (int64_t worker = 0; worker < args_.workers; ++worker) {
      const double told = told_[told_at(worker, round + 1, block)];
      if (!(told <= last)) last = told;
      if (last != last) return last;
    }
    return last;
  }

 private:
  size_t at(int64_t worker, int64_t block) const { return (size_t)(worker * args_.blocks + block); }
  // Two rounds are enough: nobody begins the next but one before all have begun the next.
  size_t told_at(int64_t worker, int64_t round, int64_t block) const {
    return (size_t)((round % 2 * args_.workers + worker) * args_.blocks + block);
  }
  void average(double& mean, double seen) const {
    mean = mean == mean ? mean + args_.gain * (seen - mean) : seen;
  }

  const gradwire_training& args_;
  std::vector<double> rates_;            // by worker
  std::vector<double> appears_, ready_;  // by worker and block
  std::vector<double> told_;             // by round, worker and block
};

}  // namespace gradwire_simulator
