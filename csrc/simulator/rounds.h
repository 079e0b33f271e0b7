// Rounds of training whose gradients are broadcast in blocks (AQGB): when each block is computed and sent,
// and in how many bits. One call simulates a whole run, in one thread and with memory of its own. The rules
// stand in harness/timing/simulate/rounds.py; tests/harness/timing/simulate/reference_rounds.py follows them
// in plain Python and gives the same bytes.
#pragma once
#include "gradwire/abi.h"

// What a row of the run says: a block's forward or backward pass, or a part of a block that is sent.
enum { GRADWIRE_FORWARD = 0, GRADWIRE_BACKWARD = 1, GRADWIRE_STAGE_ONE = 2, GRADWIRE_STAGE_TWO = 3 };

typedef struct {
  gradwire_call call;
  int64_t workers, blocks, rounds;
  int64_t adaptive;       // 1: ratios follow deadlines, and values are refined; 0: every value has `bits`
  int64_t bits;           // of a value, 1 to 32
  int64_t unhindered;     // 1: no forward pass waits
  int64_t partition;      // values: what is sent gives way at multiples of it
  double floor;           // the least ratio, above 0 and up to 1
  double margin;          // seconds before a deadline when a block's refinement ends
  double gain;            // of the newest in moving averages, above 0 and up to 1
  double until;           // seconds that are simulated
  const int64_t* values;  // blocks, in forward order: how many each has
  const double* compute;  // rounds * workers * 2 * blocks: seconds of forward passes, then of backward passes
  int64_t copies;         // flows of one broadcast: 1 if the switch copies it, else one for each other worker
  int64_t routes, links;  // routes = workers * copies
  const int64_t* first_links;    // routes + 1, into route_links
  const int64_t* route_links;    // the links that the routes take
  const double* latencies;       // workers: seconds until what each has sent is everywhere
  const double* rates;           // links: bytes per second, above 0
  int64_t changes;               // of the rates, the earlier ones first
  const double* change_at;       // changes: seconds
  const double* change_factors;  // changes: from then on every link has so many times its rate, above 0
  int64_t rows;                  // that there is room for
  int64_t* kinds;                // rows: GRADWIRE_FORWARD, …
  int64_t* worker;               // rows
  int64_t* round;                // rows
  int64_t* block;                // rows
  int64_t* bits_sent;            // rows: of each value, in this transmission
  int64_t* values_sent;          // rows: values of whole partitions
  double* start;                 // rows: seconds
  double* end;                   // rows: seconds; NaN: not by `until`
  double* bytes;                 // rows: of all copies, also of what was cut off
  double* ratio;                 // rows: the quantization ratio that the bits follow from
  double* rate;                  // rows: the bits per second that the sender expects, NaN: not known yet
  int64_t* found;  // 1: rows of the run, in the order in which they began; above `rows`: those had no room
} gradwire_training;

GRADWIRE_API int gradwire_train(const gradwire_training* args);
