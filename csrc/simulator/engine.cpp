#include "simulator.h"

#include <algorithm>
#include <deque>
#include <vector>

#include "background.h"
#include "events.h"
#include "flows.h"

namespace gradwire_simulator {
namespace {

enum Kind : int64_t { START, WORKED, REACHED, FLOWN, ARRIVED, BACKGROUND_FLOWN, BACKGROUND_ARRIVED, CHANGED };

// The messages of each post, in order, by one of their ends: `ends_of(message)` are the posts at that end.
class Messages {
 public:
  template <class EndsOf>
  Messages(int64_t messages, int64_t posts, EndsOf ends_of) : first_((size_t)posts + 1) {
    for (int64_t message = 0; message < messages; ++message)
      for (const int64_t post : ends_of(message)) ++first_[(size_t)post + 1];
    for (size_t post = 0; post < (size_t)posts; ++post) first_[post + 1] += first_[post];
    messages_.resize((size_t)first_.back());
    std::vector<int64_t> next = first_;
    for (int64_t message = 0; message < messages; ++message)
      for (const int64_t post : ends_of(message)) messages_[(size_t)next[(size_t)post]++] = message;
  }
  Numbers of(int64_t post) const { return {messages_.data() + first_[(size_t)post], count(post)}; }
  int64_t count(int64_t post) const { return first_[(size_t)post + 1] - first_[(size_t)post]; }

 private:
  std::vector<int64_t> first_, messages_;
};

class Engine {
 public:
  explicit Engine(const gradwire_simulation& args)
      : args_(args),
        sent_(args.messages, args.posts, [&](int64_t message) { return Numbers{args.senders + message, 1}; }),
        received_(args.messages, args.posts, [&](int64_t message) { return receivers_of(message); }),
        background_(args),
        flows_(args.messages + background_.flows(), std::max(args.links, args.routes + background_.flows()),
               args.links, args.rates, args.urgent != 0),
        open_((size_t)args.posts),
        posted_((size_t)args.posts),
        waiting_((size_t)args.posts, -1),
        next_task_(args.first_tasks, args.first_tasks + args.threads),
        at_((size_t)args.threads, -1),
        stop_((size_t)args.threads),
        ready_(args.ready, args.ready + args.tasks),
        is_open_((size_t)args.tasks, 1),
        is_done_((size_t)args.tasks),
        expected_by_((size_t)args.tasks, -1),
        awaited_by_((size_t)args.tasks, -1),
        lane_at_(args.first_lane_operations, args.first_lane_operations + args.lanes),
        woken_((size_t)args.lanes),
        running_(args.threads + args.lanes) {
    for (int64_t post = 0; post < args.posts; ++post)
      open_[(size_t)post] = sent_.count(post) + received_.count(post);
    int64_t ranks = 0;
    for (int64_t thread = 0; thread < args.threads; ++thread) ranks = std::max(ranks, args.ranks[thread] + 1);
    for (int64_t lane = 0; lane < args.lanes; ++lane)
      for (int64_t at = args.first_lane_operations[lane]; at < args.first_lane_operations[lane + 1]; ++at)
        if (args.kinds[at] == GRADWIRE_START) is_open_[(size_t)args.values[at]] = 0;
    busy_.resize((size_t)ranks);
    queues_.resize((size_t)ranks);
  }

  // Returns how many threads and lanes wait for ever.
  int64_t run() {
    for (int64_t lane = 0; lane < args_.lanes; ++lane) run_ahead(lane, 0);
    for (int64_t thread = 0; thread < args_.threads; ++thread) schedule_task(thread, 0);
    for (int64_t flow = 0; flow < background_.flows(); ++flow) start_background(flow, 0);
    for (int64_t index = 0; index < args_.changes; ++index)
      events_.push(args_.change_at[index], CHANGED, index);
    foretell(0);
    while (running_ && coming_) {
      const double now = events_.next_at();
      while (!events_.empty() && events_.next_at() == now) {
        handle(events_.pop(), now);
        while (!turns_.empty()) {
          const int64_t thread = turns_.front();
          turns_.pop_front();
          proceed(thread, now);
        }
      }
      foretell(now);
    }
    return running_;
  }

 private:
  void push_own(double at, Kind kind, int64_t index) {
    ++coming_;
    events_.push(at, kind, index);
  }

  void foretell(double now) {
    for (const Finish& finish : flows_.settle(now))
      events_.push(finish.at, finish.flow < args_.messages ? FLOWN : BACKGROUND_FLOWN, finish.flow,
                   finish.version);
  }

  void handle(const Event& event, double now) {
    if (event.kind == BACKGROUND_FLOWN) return background_flown(event, now);
    if (event.kind == BACKGROUND_ARRIVED) return background_arrived(event.index, now);
    if (event.kind == CHANGED) return flows_.rescale(args_.change_factors[event.index]);
    if (event.kind == FLOWN && !flows_.finish(event.index, event.version, now)) return;
    --coming_;
    if (event.kind == FLOWN)
      flown(event.index, now);
    else if (event.kind == ARRIVED)
      arrived(event.index, now);
    else if (event.kind == START)
      take_turn(event.index);
    else if (event.kind == REACHED)
      reached(event.index, now);
    else
      worked(event.index, now);
  }

  void schedule_task(int64_t thread, double now) {
    int64_t& next = next_task_[(size_t)thread];
    if (next == args_.first_tasks[thread + 1]) {
      --running_;
      return;
    }
    const int64_t task = args_.thread_tasks[next++];
    at_[(size_t)thread] = args_.first_operations[task];
    stop_[(size_t)thread] = args_.first_operations[task + 1];
    if (is_open_[(size_t)task])
      start_task(task, thread, now);
    else
      expected_by_[(size_t)task] = thread;
  }

  void start_task(int64_t task, int64_t thread, double now) {
    const double ready = ready_[(size_t)task];
    push_own(now > ready ? now : ready, START, thread);
  }

  // A lane computes and starts tasks up to its next wait: when, is known beforehand.
  void run_ahead(int64_t lane, double now) {
    int64_t& at = lane_at_[(size_t)lane];
    double& woken = woken_[(size_t)lane];
    double time = now;
    for (; at < args_.first_lane_operations[lane + 1]; ++at) {
      args_.start[at] = time;
      if (args_.kinds[at] == GRADWIRE_BEGIN) {
        woken = time;
      } else if (args_.kinds[at] == GRADWIRE_COMPUTE) {
        const double computed = woken + args_.work_s[at];
        if (computed > time) time = computed;
      } else if (args_.kinds[at] == GRADWIRE_START) {
        open(args_.values[at], time, now);
      } else {
        return push_own(time, REACHED, lane);
      }
      args_.end[at] = time;
    }
    --running_;
  }

  void open(int64_t task, double at, double now) {
    is_open_[(size_t)task] = 1;
    if (at > ready_[(size_t)task]) ready_[(size_t)task] = at;
    if (expected_by_[(size_t)task] >= 0) start_task(task, expected_by_[(size_t)task], now);
  }

  // A lane has come to a wait.
  void reached(int64_t lane, double now) {
    const int64_t at = lane_at_[(size_t)lane], task = args_.values[at];
    if (args_.kinds[at] == GRADWIRE_BARRIER) {
      if (++met_ < args_.lanes) return;
      met_ = 0;
      for (int64_t each = 0; each < args_.lanes; ++each) wake(each, now);
    } else if (task < 0 || is_done_[(size_t)task]) {
      wake(lane, now);
    } else {
      awaited_by_[(size_t)task] = lane;
    }
  }

  void wake(int64_t lane, double now) {
    args_.end[lane_at_[(size_t)lane]++] = now;
    woken_[(size_t)lane] = now;
    run_ahead(lane, now);
  }

  void take_turn(int64_t thread) {
    const size_t rank = (size_t)args_.ranks[thread];
    if (busy_[rank]) {
      queues_[rank].push_back(thread);
    } else {
      busy_[rank] = 1;
      turns_.push_back(thread);
    }
  }

  void end_turn(int64_t thread) {
    const size_t rank = (size_t)args_.ranks[thread];
    if (queues_[rank].empty()) {
      busy_[rank] = 0;
    } else {
      turns_.push_back(queues_[rank].front());
      queues_[rank].pop_front();
    }
  }

  void proceed(int64_t thread, double now) {
    int64_t& at = at_[(size_t)thread];
    for (; at < stop_[(size_t)thread]; ++at) {
      args_.start[at] = args_.end[at] = now;
      if (args_.kinds[at] == GRADWIRE_WORK) {
        if (args_.work_s[at] > 0) return push_own(now + args_.work_s[at], WORKED, thread);
      } else if (args_.kinds[at] == GRADWIRE_POST) {
        post(args_.values[at], now);
      } else {
        end_turn(thread);
        return wait(thread, args_.values[at], now);
      }
    }
    end_turn(thread);
    const int64_t task = args_.thread_tasks[next_task_[(size_t)thread] - 1];
    schedule_task(thread, now);
    is_done_[(size_t)task] = 1;
    if (awaited_by_[(size_t)task] >= 0) wake(awaited_by_[(size_t)task], now);
  }

  void worked(int64_t thread, double now) {
    args_.end[at_[(size_t)thread]++] = now;
    proceed(thread, now);
  }

  void wait(int64_t thread, int64_t post, double now) {
    if (open_[(size_t)post])
      waiting_[(size_t)post] = thread;
    else
      through(thread, now);
  }

  void through(int64_t thread, double now) {
    args_.end[at_[(size_t)thread]++] = now;
    take_turn(thread);
  }

  void post(int64_t post, double now) {
    posted_[(size_t)post] = 1;
    for (const int64_t message : received_.of(post))
      if (posted_[(size_t)args_.senders[message]] && receivers_of(message).count == 1) begin(message, now);
    for (const int64_t message : sent_.of(post)) {
      const Numbers receivers = receivers_of(message);
      if (receivers.count > 1 || posted_[(size_t)receivers.first[0]]) begin(message, now);
    }
  }

  void begin(int64_t message, double now) {
    const int64_t route = args_.route[message];
    const Numbers links = links_of(route);
    if (links.count && args_.sizes[message]) {
      ++coming_;
      flows_.start(message, lane(route, links), links, (double)args_.sizes[message], urgency(message), now);
    } else {
      flown(message, now);
    }
  }

  void flown(int64_t message, double now) {
    const double latency = args_.sizes[message] ? args_.latencies[args_.route[message]] : 0;
    if (latency != 0)
      push_own(now + latency, ARRIVED, message);
    else
      arrived(message, now);
  }

  void arrived(int64_t message, double now) {
    arrived_at(args_.senders[message], now);
    for (const int64_t post : receivers_of(message)) arrived_at(post, now);
  }

  void arrived_at(int64_t post, double now) {
    if (--open_[(size_t)post] == 0 && waiting_[(size_t)post] >= 0) through(waiting_[(size_t)post], now);
  }

  void start_background(int64_t flow, double now) {
    const Numbers links = links_of(background_.route(flow));
    flows_.start(args_.messages + flow, lane(args_.routes + flow, links), links, background_.bytes(flow),
                 Urgency(), now);
  }

  void background_flown(const Event& event, double now) {
    if (!flows_.finish(event.index, event.version, now)) return;
    const int64_t flow = event.index - args_.messages;
    events_.push(now + args_.latencies[background_.route(flow)], BACKGROUND_ARRIVED, flow);
  }

  void background_arrived(int64_t flow, double now) {
    for (const int64_t following : background_.arrived(flow)) start_background(following, now);
  }

  // Messages between the same ranks share a connection; where links are serial, all that take a link share it
  // in turns.
  int64_t lane(int64_t connection, Numbers links) const { return args_.serial ? links.first[0] : connection; }

  Urgency urgency(int64_t message) const {
    if (!args_.urgent) return Urgency();
    return {args_.levels[message], args_.newest_first[message], args_.boundaries[message]};
  }

  Numbers receivers_of(int64_t message) const {
    const int64_t first = args_.first_receivers[message];
    return {args_.receivers + first, args_.first_receivers[message + 1] - first};
  }

  Numbers links_of(int64_t route) const {
    const int64_t first = args_.first_links[route];
    return {args_.route_links + first, args_.first_links[route + 1] - first};
  }

  const gradwire_simulation& args_;
  const Messages sent_, received_;
  Background background_;
  Flows flows_;
  Events events_;
  std::deque<int64_t> turns_;  // threads that go on in this moment
  std::vector<int64_t> open_;  // by post: messages that have not arrived
  std::vector<char> posted_;
  std::vector<int64_t> waiting_;  // by post: the thread
  std::vector<int64_t> next_task_;
  std::vector<int64_t> at_, stop_;                 // by thread: its operation, and where its task ends
  std::vector<double> ready_;                      // by task
  std::vector<char> is_open_, is_done_;            // by task: may begin at `ready_`; has ended
  std::vector<int64_t> expected_by_, awaited_by_;  // by task: the thread that waits to begin it, the lane
  std::vector<int64_t> lane_at_;                   // by lane: its operation
  std::vector<double> woken_;                      // by lane: when its step began, or its last wait ended
  int64_t met_ = 0;                                // lanes at the barrier
  std::vector<char> busy_;
  std::vector<std::deque<int64_t>> queues_;  // by rank
  int64_t running_;
  int64_t coming_ = 0;  // events and messages under way that are not background traffic
};

bool is_sound(const gradwire_simulation& args) {
  const int64_t counts[] = {args.operations, args.tasks, args.threads, args.lanes, args.posts,  args.messages,
                            args.routes,     args.links, args.jobs,    args.size,  args.changes};
  for (const int64_t count : counts)
    if (count < 0) return false;
  if (!can_carry(args.rates, args.links, args.change_factors, args.changes)) return false;
  return args.unfinished && args.size <= args.routes &&
         (args.jobs == 0 || (args.size >= 2 && args.chunk > 0));
}

}  // namespace
}  // namespace gradwire_simulator

GRADWIRE_API int gradwire_simulate(const gradwire_simulation* args) {
  if (args->call.bytes != (int32_t)sizeof(gradwire_simulation)) return GRADWIRE_WRONG_SIZE;
  if (!gradwire_simulator::is_sound(*args)) return GRADWIRE_BAD_ARGUMENT;
  *args->unfinished = gradwire_simulator::Engine(*args).run();
  return GRADWIRE_OK;
}
