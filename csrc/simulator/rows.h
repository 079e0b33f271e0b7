// The rows of a simulated training: what each worker computes and sends, in the order in which it begins.
// Those that there is no room for are counted.
#pragma once
#include "rounds.h"

namespace gradwire_simulator {

class Rows {
 public:
  explicit Rows(const gradwire_training& args) : args_(args) {}

  int64_t count() const { return count_; }

  int64_t begin(int64_t kind, int64_t worker, int64_t round, int64_t block, double now) {
    const int64_t row = count_++;
    if (row >= args_.rows) return row;
    args_.kinds[row] = kind;
    args_.worker[row] = worker;
    args_.round[row] = round;
    args_.block[row] = block;
    args_.start[row] = now;
    return row;
  }

  void expect(int64_t row, int64_t bits, double ratio, double rate) {
    if (row >= args_.rows) return;
    args_.bits_sent[row] = bits;
    args_.ratio[row] = ratio;
    args_.rate[row] = rate;
  }

  void carry(int64_t row, int64_t values, double bytes) {
    if (row >= args_.rows) return;
    args_.values_sent[row] = values;
    args_.bytes[row] = bytes;
  }

  void end(int64_t row, double now) {
    if (row < args_.rows) args_.end[row] = now;
  }

 private:
  const gradwire_training& args_;
  int64_t count_ = 0;
};

}  // namespace gradwire_simulator
