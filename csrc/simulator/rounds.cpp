#include "rounds.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "events.h"
#include "flows.h"
#include "profile.h"
#include "rows.h"
#include "transmission.h"

namespace gradwire_simulator {
namespace {

// The `version` of an event that is about a block is the round.
enum Kind : int64_t { COMPUTED, FLOWN, DELIVERED_THERE, CLOSED_THERE, DUE, CHANGED };

class Rounds {
 public:
  explicit Rounds(const gradwire_training& args)
      : args_(args),
        flows_(args.workers * args.copies, args.workers * args.copies, args.links, args.rates, true),
        profile_(args),
        rows_(args),
        round_((size_t)args.workers),
        step_((size_t)args.workers),
        row_((size_t)args.workers, -1),
        idle_((size_t)args.workers),
        free_at_((size_t)args.workers),
        began_((size_t)args.workers),
        blocks_((size_t)(args.workers * args.blocks)),
        sent_((size_t)args.workers),
        delivered_at_(slots()),
        closed_(slots()) {}

  int64_t run() {
    for (int64_t index = 0; index < args_.changes; ++index)
      events_.push(args_.change_at[index], CHANGED, index);
    for (int64_t worker = 0; worker < args_.workers; ++worker) go_on(worker, 0);
    foretell(0);
    while (!events_.empty() && events_.next_at() <= args_.until) {
      const double now = events_.next_at();
      while (!events_.empty() && events_.next_at() == now) handle(events_.pop(), now);
      foretell(now);
    }
    for (int64_t worker = 0; worker < args_.workers; ++worker)
      if (sent_[(size_t)worker].row >= 0)
        rows_.carry(sent_[(size_t)worker].row, 0, carried_by_all(worker, args_.until));
    return rows_.count();
  }

 private:
  void foretell(double now) {
    for (const Finish& finish : flows_.settle(now))
      events_.push(finish.at, FLOWN, finish.flow, finish.version);
  }

  void handle(const Event& event, double now) {
    if (event.kind == CHANGED) return flows_.rescale(args_.change_factors[event.index]);
    if (event.kind == COMPUTED) return computed(event.index, now);
    if (event.kind == FLOWN) return flown(event.index, event.version, now);
    const int64_t worker = event.index / args_.blocks, block = event.index % args_.blocks;
    if (event.kind == DUE) return due(worker, block, event.version, now);
    for (int64_t other = 0; other < args_.workers; ++other)
      if (other != worker) arrived((Kind)event.kind, other, block, event.version, now);
  }

  // ---- computation: a round is `blocks` forward passes, then as many backward passes ----

  // A worker that has computed so far begins what is next, or waits for it.
  void go_on(int64_t worker, double now) {
    const int64_t step = step_[(size_t)worker], round = round_[(size_t)worker];
    free_at_[(size_t)worker] = now;
    if (round == args_.rounds) return;
    if (step == args_.blocks) begin_backward(worker, now);
    const bool needs = step < args_.blocks && round > 0 && !args_.unhindered;
    idle_[(size_t)worker] = needs && closed_[slot(worker, step, round - 1)] < args_.workers;
    if (!idle_[(size_t)worker]) compute(worker, now);
  }

  void compute(int64_t worker, double now) {
    const int64_t step = step_[(size_t)worker], round = round_[(size_t)worker], blocks = args_.blocks;
    const bool is_forward = step < blocks;
    const int64_t block = is_forward ? step : 2 * blocks - 1 - step;
    if (is_forward && round > 0 && !args_.unhindered) take_in(worker, block, round - 1);
    row_[(size_t)worker] =
        rows_.begin(is_forward ? GRADWIRE_FORWARD : GRADWIRE_BACKWARD, worker, round, block, now);
    const int64_t phase = (round * args_.workers + worker) * 2 + (is_forward ? 0 : 1);
    events_.push(now + args_.compute[phase * blocks + block], COMPUTED, worker);
  }

  // A forward pass takes in a block's mean: when it could have at the earliest is what deadlines follow from.
  void take_in(int64_t worker, int64_t block, int64_t round) {
    const size_t place = slot(worker, block, round);
    const double ready = std::max(free_at_[(size_t)worker], delivered_at_[place]);
    profile_.saw_ready(worker, block, ready - began_[(size_t)worker]);
    closed_[place] = 0;
  }

  void computed(int64_t worker, double now) {
    const int64_t step = step_[(size_t)worker]++;
    rows_.end(row_[(size_t)worker], now);
    if (step >= args_.blocks) {
      const int64_t block = 2 * args_.blocks - 1 - step;
      profile_.saw_gradient(worker, block, now - began_[(size_t)worker]);
      appeared(worker, block, now);
    }
    if (step + 1 == 2 * args_.blocks) {
      step_[(size_t)worker] = 0;
      ++round_[(size_t)worker];
    }
    go_on(worker, now);
  }

  void begin_backward(int64_t worker, double now) {
    const int64_t round = round_[(size_t)worker];
    began_[(size_t)worker] = now;
    profile_.tell(worker, round);
    for (int64_t block = 0; block < args_.blocks; ++block) {
      const double deadline = args_.adaptive ? profile_.deadline(round, block) : unknown;
      const bool is_known = deadline == deadline;
      of(worker, block) = {0, {}, 0, now + deadline, false, false, !is_known, false};
      if (is_known)
        events_.push(std::max(now, now + deadline - args_.margin), DUE, index(worker, block), round);
    }
  }

  // ---- what a worker sends ----

  void appeared(int64_t worker, int64_t block, double now) {
    Block& own = of(worker, block);
    own.has_appeared = true;
    own.pending = args_.values[block];
    if (!own.pending || !args_.copies) delivered(worker, block, now);
    if (sent_[(size_t)worker].row < 0)
      send_next(worker, now);
    else if (own.pending)
      give_way(worker, now);
  }

  // The newest block first; when none is left, refinement in the order of the forward passes.
  void send_next(int64_t worker, double now) {
    int64_t newest = -1, pending = 0;
    for (int64_t block = args_.blocks - 1; block >= 0; --block) {
      if (of(worker, block).is_delivered || !of(worker, block).has_appeared) continue;
      newest = block;
      pending += of(worker, block).pending;
    }
    if (newest < 0) {
      if (of(worker, 0).has_appeared) refine(worker, now);
      return;
    }
    const double ratio = stage_one_ratio(worker, pending, now);
    const int64_t bits = args_.adaptive ? (int64_t)std::ceil(32 * ratio) : args_.bits;
    send(worker, newest, GRADWIRE_STAGE_ONE, of(worker, newest).pending, bits, ratio, now);
  }

  double stage_one_ratio(int64_t worker, int64_t pending, double now) const {
    if (!args_.adaptive) return (double)args_.bits / 32;
    int64_t next = args_.blocks - 1;
    while (next >= 0 && of(worker, next).has_appeared) --next;
    if (next < 0) return args_.floor;
    const double left = began_[(size_t)worker] + profile_.appears(worker, next) - now;
    const double ratio = profile_.rate(worker) * left / (32 * (double)pending);
    return ratio > args_.floor ? std::min(1.0, ratio) : args_.floor;  // the floor as long as nothing is known
  }

  void refine(int64_t worker, double now) {
    for (int64_t block = 0; block < args_.blocks; ++block) {
      Block& own = of(worker, block);
      while (!own.is_closed) {
        double remaining = 0;
        for (size_t part = own.refined; part < own.parts.size(); ++part)
          remaining += (double)(own.parts[part].values * (32 - own.parts[part].bits));
        if (!(remaining > 0)) {
          close(worker, block, now);
          break;
        }
        const Part& part = own.parts[own.refined];
        const double ratio = std::min(1.0, profile_.rate(worker) * (own.deadline - now) / remaining);
        const int64_t bits = (int64_t)std::ceil(ratio * (double)(32 - part.bits));
        if (bits > 0) return send(worker, block, GRADWIRE_STAGE_TWO, part.values, bits, ratio, now);
        if (part.bits == 32)
          ++own.refined;
        else
          close(worker, block, now);
      }
    }
  }

  void send(int64_t worker, int64_t block, int64_t stage, int64_t values, int64_t bits, double ratio,
            double now) {
    const int64_t row = rows_.begin(stage, worker, round_of(worker), block, now);
    const double bytes = (double)(values * bits) / 8;
    rows_.expect(row, bits, ratio, profile_.rate(worker));
    sent_[(size_t)worker] = {row, block, stage, values, bits, args_.copies, bytes, now};
    for (int64_t copy = 0; copy < args_.copies; ++copy) {
      const int64_t flow = worker * args_.copies + copy;
      flows_.start(flow, flow, links_of(flow), bytes, Urgency{stage - GRADWIRE_STAGE_ONE, 0, 0}, now);
    }
  }

  // A newer block is there: what is under way ends with the partition that the furthest copy is in.
  void give_way(int64_t worker, double now) {
    Transmission& own = sent_[(size_t)worker];
    const double boundary = (double)(args_.partition * own.bits) / 8;
    const int64_t partitions = (int64_t)std::ceil(carried(worker, now, true) / boundary - slack);
    const double stop = (double)partitions * boundary;
    if (stop >= own.bytes) return;
    for (int64_t copy = 0; copy < args_.copies; ++copy)
      flows_.shorten(worker * args_.copies + copy, own.bytes - stop);
    own.bytes = stop;
    own.values = partitions * args_.partition;
  }

  // Bytes of the copy that has come furthest, or least far.
  double carried(int64_t worker, double now, bool furthest) const {
    double most = 0, least = sent_[(size_t)worker].bytes;
    for (int64_t copy = 0; copy < args_.copies; ++copy) {
      const double bytes = carried_by(worker, copy, now);
      most = std::max(most, bytes);
      least = std::min(least, bytes);
    }
    return furthest ? most : least;
  }

  void flown(int64_t flow, int64_t version, double now) {
    if (!flows_.finish(flow, version, now)) return;
    const int64_t worker = flow / args_.copies;
    if (--sent_[(size_t)worker].open) return;
    sent(worker, sent_[(size_t)worker].bytes, now);
    send_next(worker, now);
  }

  // A transmission has ended, of which `bytes` are everywhere.
  void sent(int64_t worker, double bytes, double now) {
    Transmission& own = sent_[(size_t)worker];
    rows_.carry(own.row, own.values, carried_by_all(worker, now));
    rows_.end(own.row, now);
    if (now > own.began) profile_.saw_rate(worker, 8 * bytes / (now - own.began));
    own.row = -1;
    Block& block = of(worker, own.block);
    if (own.stage == GRADWIRE_STAGE_TWO) {
      ++block.refined;
    } else {
      if (own.values) block.parts.push_back({own.values, own.bits});
      block.pending -= own.values;
      if (!block.pending) delivered(worker, own.block, now);
    }
  }

  // Bytes of all copies.
  double carried_by_all(int64_t worker, double now) const {
    double bytes = 0;
    for (int64_t copy = 0; copy < args_.copies; ++copy) bytes += carried_by(worker, copy, now);
    return bytes;
  }

  double carried_by(int64_t worker, int64_t copy, double now) const {
    const int64_t flow = worker * args_.copies + copy;
    return sent_[(size_t)worker].bytes - (flows_.is_active(flow) ? flows_.left(flow, now) : 0);
  }

  // ---- what arrives ----

  // Stage one has carried all of a block.
  void delivered(int64_t worker, int64_t block, double now) {
    of(worker, block).is_delivered = true;
    tell_all(DELIVERED_THERE, worker, block, now);
    if (of(worker, block).is_due) close(worker, block, now);
  }

  // The refinement of a block ends, done or not.
  void due(int64_t worker, int64_t block, int64_t round, double now) {
    Block& own = of(worker, block);
    if (own.is_closed || round_of(worker) != round) return;
    own.is_due = true;
    if (!own.is_delivered) return;
    Transmission& under_way = sent_[(size_t)worker];
    const bool is_refined = under_way.row >= 0 && under_way.block == block;
    if (is_refined) stop(worker, now);
    close(worker, block, now);
    if (is_refined) send_next(worker, now);
  }

  // What is under way ends at once; whole partitions count.
  void stop(int64_t worker, double now) {
    Transmission& own = sent_[(size_t)worker];
    const double boundary = (double)(args_.partition * own.bits) / 8, bytes = carried(worker, now, false);
    own.values = std::min(own.values, args_.partition * (int64_t)std::floor(bytes / boundary + slack));
    sent(worker, bytes, now);
    for (int64_t copy = 0; copy < args_.copies; ++copy) {
      const int64_t flow = worker * args_.copies + copy;
      if (flows_.is_active(flow)) flows_.stop(flow, now);
    }
  }

  void close(int64_t worker, int64_t block, double now) {
    of(worker, block).is_closed = true;
    tell_all(CLOSED_THERE, worker, block, now);
  }

  void tell_all(Kind kind, int64_t worker, int64_t block, double now) {
    const int64_t round = round_of(worker);
    if (args_.latencies[worker] != 0) {
      events_.push(now + args_.latencies[worker], kind, index(worker, block), round);
      return arrived(kind, worker, block, round, now);
    }
    for (int64_t other = 0; other < args_.workers; ++other) arrived(kind, other, block, round, now);
  }

  void arrived(Kind kind, int64_t worker, int64_t block, int64_t round, double now) {
    const size_t place = slot(worker, block, round);
    if (kind == DELIVERED_THERE) {
      delivered_at_[place] = now;
      return;
    }
    const bool is_whole = ++closed_[place] == args_.workers;
    const bool waits = idle_[(size_t)worker] && step_[(size_t)worker] == block;
    if (!is_whole || !waits || round_[(size_t)worker] != round + 1) return;
    idle_[(size_t)worker] = 0;
    compute(worker, now);
  }

  Numbers links_of(int64_t route) const {
    const int64_t first = args_.first_links[route];
    return {args_.route_links + first, args_.first_links[route + 1] - first};
  }

  // The round whose gradients a worker sends: it may have begun the forward passes of the next.
  int64_t round_of(int64_t worker) const {
    return round_[(size_t)worker] - (step_[(size_t)worker] < args_.blocks ? 1 : 0);
  }

  int64_t index(int64_t worker, int64_t block) const { return worker * args_.blocks + block; }
  Block& of(int64_t worker, int64_t block) { return blocks_[(size_t)index(worker, block)]; }
  const Block& of(int64_t worker, int64_t block) const { return blocks_[(size_t)index(worker, block)]; }

  // Where what has arrived at a worker is kept: one round may begin to arrive before the one before is taken
  // in.
  size_t slots() const { return (size_t)(2 * args_.workers * args_.blocks); }
  size_t slot(int64_t worker, int64_t block, int64_t round) const {
    return (size_t)(round % 2 * args_.workers * args_.blocks + index(worker, block));
  }

  const gradwire_training& args_;
  Flows flows_;
  Profile profile_;
  Rows rows_;
  Events events_;
  std::vector<int64_t> round_, step_, row_;  // by worker: where its computation is
  std::vector<char> idle_;                   // by worker: waits for gradients
  std::vector<double> free_at_, began_;  // by worker: since when it has nothing to compute; its backward pass
  std::vector<Block> blocks_;            // by worker and block
  std::vector<Transmission> sent_;       // by worker
  std::vector<double> delivered_at_;     // by slot: when the last worker's block had arrived
  std::vector<int64_t> closed_;          // by slot: workers that send no more of a block
};

bool is_sound(const gradwire_training& args) {
  if (args.workers < 1 || args.blocks < 1 || args.rounds < 0 || args.rows < 0 || args.links < 0 ||
      args.changes < 0)
    return false;
  if (args.copies < 0 || args.routes != args.workers * args.copies || (args.unhindered && args.copies))
    return false;
  if (args.bits < 1 || args.bits > 32 || args.partition < 1) return false;
  if (!(args.floor > 0 && args.floor <= 1 && args.gain > 0 && args.gain <= 1 && args.margin >= 0))
    return false;
  for (int64_t block = 0; block < args.blocks; ++block)
    if (args.values[block] < 0) return false;
  for (int64_t at = 0; at < args.rounds * args.workers * 2 * args.blocks; ++at)
    if (!(args.compute[at] >= 0)) return false;
  if (!can_carry(args.rates, args.links, args.change_factors, args.changes)) return false;
  return args.found != nullptr;
}

}  // namespace
}  // namespace gradwire_simulator

GRADWIRE_API int gradwire_train(const gradwire_training* args) {
  if (args->call.bytes != (int32_t)sizeof(gradwire_training)) return GRADWIRE_WRONG_SIZE;
  if (!gradwire_simulator::is_sound(*args)) return GRADWIRE_BAD_ARGUMENT;
  *args->found = gradwire_simulator::Rounds(*args).run();
  return GRADWIRE_OK;
}
