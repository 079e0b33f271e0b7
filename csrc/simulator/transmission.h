// What a worker of a simulated training keeps: its gradient of each block, and what it sends at the moment.
#pragma once
#include <stdint.h>

#include <vector>

namespace gradwire_simulator {

// Values of a block that went in stage one with the same bits.
struct Part {
  int64_t values, bits;
};

// A worker's gradient of a block, in the round that it is in.
struct Block {
  int64_t pending;  // values that stage one has still to carry
  std::vector<Part> parts;
  size_t refined;  // parts that stage two is through with
  double deadline;
  bool has_appeared, is_delivered, is_due, is_closed;
};

// What a worker sends at the moment.
struct Transmission {
  int64_t row = -1, block, stage, values, bits, open;  // open: copies under way
  double bytes;                                        // of one copy
  double began;
};

}  // namespace gradwire_simulator
