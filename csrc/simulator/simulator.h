// The simulated clock's engine: when everything that the ranks of a step do begins and ends, given the links
// between them. One call simulates one step, in one thread and with memory of its own. The rules stand in
// harness/timing/simulate/engine.py; tests/harness/timing/simulate/reference_engine.py follows them in plain
// Python and gives the same bytes.
#pragma once
#include "gradwire/abi.h"

// What a task does, and (from GRADWIRE_BEGIN on) what a lane does: begin a step, compute, start a task, await
// one, meet the other lanes.
enum {
  GRADWIRE_WORK = 0,
  GRADWIRE_POST = 1,
  GRADWIRE_WAIT = 2,
  GRADWIRE_BEGIN = 3,
  GRADWIRE_COMPUTE = 4,
  GRADWIRE_START = 5,
  GRADWIRE_AWAIT = 6,
  GRADWIRE_BARRIER = 7
};

typedef struct {
  gradwire_call call;
  int64_t operations, tasks, threads, lanes, posts, messages;
  const int64_t* kinds;             // operations: GRADWIRE_WORK, …
  const int64_t* values;            // operations: the post that is made or waited for, or the task that is
                                    // started or awaited (-1: one that has ended before)
  const int64_t* first_operations;  // tasks + 1
  const int64_t* ranks;             // threads: whose processor it takes turns with
  const int64_t* first_tasks;       // threads + 1, into thread_tasks
  const int64_t* thread_tasks;      // tasks
  const int64_t* first_lane_operations;  // lanes + 1, into operations: the computation of a rank
  const int64_t* route;                  // messages: which one it takes
  const int64_t* sizes;                  // messages: bytes
  const int64_t* senders;                // messages: the post that sends it
  const int64_t* first_receivers;        // messages + 1, into receivers
  const int64_t* receivers;              // the posts that receive a message, several of a multicast
  int64_t urgent;                        // 1: the next three say which messages go first; else none does
  const int64_t* levels;        // messages: the lowest has links to itself and goes first on its connection
  const int64_t* newest_first;  // messages: 1: before those of its level that were there earlier
  const int64_t*
      boundaries;        // messages: gives way to a more urgent one after multiples of so many bytes; 0: not
  const double* work_s;  // operations: seconds of work; of computation, since its lane woke: began a step, or
                         // stopped waiting; of others not read
  const double*
      ready;  // tasks: before when none may begin, seconds; nor before its lane starts it, if one does
  int64_t routes, links;
  int64_t serial;              // 1: a link carries one message after another, and a route has one link
  const int64_t* first_links;  // routes + 1, into route_links
  const int64_t* route_links;  // the links that the routes take
  const double* latencies;     // routes: seconds
  const double* rates;         // links: bytes per second, above 0
  int64_t jobs, size;  // background traffic: rings over `size` ranks; rank r's take route `routes` - size + r
  double chunk;        // bytes that a background job sends at a time
  const double* first_chunks;    // jobs: what is left of that at the beginning
  int64_t changes;               // of the rates, the earlier ones first
  const double* change_at;       // changes: seconds
  const double* change_factors;  // changes: from then on every link has so many times its rate, above 0
  double* start;                 // operations: left as it is where a rank never gets that far
  double* end;                   // operations, likewise
  int64_t* unfinished;           // 1: the threads that wait for ever
} gradwire_simulation;

GRADWIRE_API int gradwire_simulate(const gradwire_simulation* args);
