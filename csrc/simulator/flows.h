// Messages under way as fluid flows: each has its max-min fair rate, which changes as others begin and end. A
// lane carries one flow at a time, as a connection does; others wait in the order they came. Flows may be
// more or less urgent: lower levels have links to themselves, higher ones share what is left.
#pragma once
#include <algorithm>
#include <cmath>
#include <deque>
#include <vector>

#include "max_min.h"

namespace gradwire_simulator {

// The flow's last byte leaves then, unless its version has changed by that time.
struct Finish {
  double at;
  int64_t flow;
  int64_t version;
};

// Which flows go first; `boundary` bytes, or 0, is where one under way gives way.
struct Urgency {
  int64_t level = 0;
  int64_t newest_first = 0;
  int64_t boundary = 0;
};

// Whether every link has a rate above 0, and keeps one whatever changes.
inline bool can_carry(const double* rates, int64_t links, const double* factors, int64_t changes) {
  for (int64_t link = 0; link < links; ++link) {
    if (!(rates[link] > 0)) return false;
    for (int64_t index = 0; index < changes; ++index)
      if (!(rates[link] * factors[index] > 0)) return false;
  }
  return true;
}

// A flow that is within so small a part of a boundary is there: seconds times rates are rounded.
constexpr double slack = 1e-9;

class Flows {
 public:
  Flows(int64_t flows, int64_t lanes, int64_t links, const double* rates, bool urgent)
      : base_(rates),
        rates_(rates, rates + links),
        states_((size_t)flows),
        urgent_(urgent ? (size_t)flows : 0),
        users_((size_t)links),
        queues_((size_t)lanes),
        current_((size_t)lanes, -1),
        is_changed_((size_t)links),
        link_seen_((size_t)links),
        max_min_(links) {}

  void start(int64_t flow, int64_t lane, Numbers route, double bytes, Urgency urgency, double now) {
    states_[(size_t)flow].lane = lane;
    const Queued queued = {flow, route, bytes};
    if (!urgent_.empty()) urgent_[(size_t)flow] = {urgency, ++orders_, bytes, 0, false};
    if (current_[(size_t)lane] < 0) return begin(queued, now);
    enqueue(queued, lane);
    give_way(current_[(size_t)lane], flow, now);
  }

  // From this moment on every link has `factor` times its rate.
  void rescale(double factor) {
    for (size_t link = 0; link < rates_.size(); ++link) {
      rates_[link] = base_[link] * factor;
      if (!users_[link].empty()) change((int64_t)link);
    }
  }

  // Whether the flow has ended; one that has come to where it gives way waits for its lane again.
  bool finish(int64_t flow, int64_t version, double now) {
    State& state = states_[(size_t)flow];
    if (!state.active || state.version != version) return false;
    state.active = false;
    for (const int64_t link : state.route) {
      auto& users = users_[(size_t)link];
      users.erase(std::find(users.begin(), users.end(), flow));
      if (!users.empty()) change(link);
    }
    const double rest = urgent_.empty() ? 0 : urgent_[(size_t)flow].rest;
    if (rest != 0) {
      urgent_[(size_t)flow].bytes = rest;
      urgent_[(size_t)flow].rest = 0;
      enqueue({flow, state.route, rest}, state.lane);
    }
    end_lane(state.lane, now);
    return rest == 0;
  }

  bool is_active(int64_t flow) const { return states_[(size_t)flow].active; }

  // Bytes that a flow under way has still to carry.
  double left(int64_t flow, double now) const {
    const State& state = states_[(size_t)flow];
    return state.left - state.rate * (now - state.since);
  }

  // A flow under way, one of those that differ in urgency, carries `bytes` less than it was to.
  void shorten(int64_t flow, double bytes) {
    State& state = states_[(size_t)flow];
    state.left -= bytes;
    urgent_[(size_t)flow].is_cut = true;
    for (const int64_t link : state.route) change(link);
  }

  // Ends a flow under way at once.
  void stop(int64_t flow, double now) { finish(flow, states_[(size_t)flow].version, now); }

  // Share the links anew after the changes at `now`; valid until the next call.
  const std::vector<Finish>& settle(double now) {
    found_.clear();
    ++round_;
    for (const int64_t link : changed_) {
      is_changed_[(size_t)link] = 0;
      for (const int64_t flow : users_[(size_t)link])
        if (states_[(size_t)flow].seen != round_) settle_around(flow, now);
    }
    changed_.clear();
    return found_;
  }

 private:
  struct State {
    Numbers route;
    double left, rate, since;
    int64_t version;
    int64_t seen;  // the round in which it was settled last
    bool active;
    int64_t lane;
  };
  struct Queued {
    int64_t flow;
    Numbers route;
    double bytes;
  };

  struct Urgent {
    Urgency urgency;
    int64_t order;  // in which they came
    double bytes;
    double rest;  // what it will carry after it has given way
    bool is_cut;  // its end is to be foretold anew
  };

  bool goes_before(int64_t flow, int64_t other) const {
    const Urgent &a = urgent_[(size_t)flow], &b = urgent_[(size_t)other];
    if (a.urgency.level != b.urgency.level) return a.urgency.level < b.urgency.level;
    return (a.urgency.newest_first ? -a.order : a.order) < (b.urgency.newest_first ? -b.order : b.order);
  }

  void enqueue(const Queued& queued, int64_t lane) {
    auto& queue = queues_[(size_t)lane];
    auto place = queue.end();
    while (!urgent_.empty() && place != queue.begin() && goes_before(queued.flow, (place - 1)->flow)) --place;
    queue.insert(place, queued);
  }

  // A flow under way stops at its next boundary if what has come is more urgent.
  void give_way(int64_t flow, int64_t comes, double now) {
    if (urgent_.empty() || !goes_before(comes, flow)) return;
    Urgent& own = urgent_[(size_t)flow];
    const double boundary = (double)own.urgency.boundary;
    if (!(boundary > 0) || own.rest != 0) return;
    const double stop = std::ceil((own.bytes - left(flow, now)) / boundary - slack) * boundary;
    if (stop >= own.bytes) return;
    own.rest = own.bytes - stop;
    shorten(flow, own.rest);
  }

  void change(int64_t link) {
    if (is_changed_[(size_t)link]) return;
    is_changed_[(size_t)link] = 1;
    changed_.push_back(link);
  }

  void begin(const Queued& queued, double now) {
    State& state = states_[(size_t)queued.flow];
    current_[(size_t)state.lane] = queued.flow;
    state = {queued.route, queued.bytes, 0, now, 0, state.seen, true, state.lane};
    for (const int64_t link : queued.route) {
      users_[(size_t)link].push_back(queued.flow);
      change(link);
    }
  }

  void end_lane(int64_t lane, double now) {
    auto& queue = queues_[(size_t)lane];
    if (queue.empty()) {
      current_[(size_t)lane] = -1;
      return;
    }
    const Queued next = queue.front();
    queue.pop_front();
    begin(next, now);
  }

  void settle_around(int64_t flow, double now) {
    if (is_alone(flow)) {
      states_[(size_t)flow].seen = round_;
      set_rate(flow, lowest_rate(flow), now);
      return;
    }
    gather(flow);
    if (!urgent_.empty()) return settle_by_level(now);
    routes_.clear();
    for (const int64_t one : together_) routes_.push_back(states_[(size_t)one].route);
    max_min_.share(routes_, links_, rates_.data(), given_);
    for (size_t i = 0; i < together_.size(); ++i) set_rate(together_[i], given_[i], now);
  }

  // Max-min within a level; the next one shares what that leaves.
  void settle_by_level(double now) {
    std::vector<int64_t> levels;
    for (const int64_t one : together_) levels.push_back(urgent_[(size_t)one].urgency.level);
    std::sort(levels.begin(), levels.end());
    levels.erase(std::unique(levels.begin(), levels.end()), levels.end());
    std::vector<double> left = rates_, rates(together_.size());
    for (const int64_t level : levels) {
      routes_.clear();
      for (const int64_t one : together_)
        if (urgent_[(size_t)one].urgency.level == level) routes_.push_back(states_[(size_t)one].route);
      max_min_.share(routes_, links_, left.data(), given_);
      size_t next = 0;
      for (size_t i = 0; i < together_.size(); ++i) {
        if (urgent_[(size_t)together_[i]].urgency.level != level) continue;
        rates[i] = given_[next];
        for (const int64_t link : routes_[next])
          left[(size_t)link] = std::max(0.0, left[(size_t)link] - given_[next]);
        ++next;
      }
    }
    for (size_t i = 0; i < together_.size(); ++i) set_rate(together_[i], rates[i], now);
  }

  bool is_alone(int64_t flow) const {
    for (const int64_t link : states_[(size_t)flow].route)
      if (users_[(size_t)link].size() != 1) return false;
    return true;
  }

  double lowest_rate(int64_t flow) const {
    const Numbers& route = states_[(size_t)flow].route;
    double lowest = rates_[(size_t)route.first[0]];
    for (const int64_t link : route)
      if (rates_[(size_t)link] < lowest) lowest = rates_[(size_t)link];
    return lowest;
  }

  // A flow and all that share a link with it, or with one that does, and their links: ascending.
  void gather(int64_t flow) {
    together_.assign(1, flow);
    links_.clear();
    states_[(size_t)flow].seen = round_;
    for (size_t i = 0; i < together_.size(); ++i) {
      for (const int64_t link : states_[(size_t)together_[i]].route) {
        if (link_seen_[(size_t)link] == round_) continue;
        link_seen_[(size_t)link] = round_;
        links_.push_back(link);
        for (const int64_t user : users_[(size_t)link]) {
          if (states_[(size_t)user].seen == round_) continue;
          states_[(size_t)user].seen = round_;
          together_.push_back(user);
        }
      }
    }
    std::sort(together_.begin(), together_.end());
    std::sort(links_.begin(), links_.end());
  }

  void set_rate(int64_t flow, double rate, double now) {
    State& state = states_[(size_t)flow];
    const bool is_cut = !urgent_.empty() && urgent_[(size_t)flow].is_cut;
    if (state.rate == rate && !is_cut) return;
    if (is_cut) urgent_[(size_t)flow].is_cut = false;
    state.left -= state.rate * (now - state.since);
    state.rate = rate;
    state.since = now;
    state.version = ++versions_;
    if (!(state.left > 0))
      found_.push_back({now, flow, state.version});
    else if (rate > 0)  // else its end is foretold when it gets a rate again
      found_.push_back({now + state.left / rate, flow, state.version});
  }

  const double* base_;
  std::vector<double> rates_;
  std::vector<State> states_;
  std::vector<Urgent> urgent_;               // empty where all flows are alike
  std::vector<std::vector<int64_t>> users_;  // of each link, in the order in which they came
  std::vector<std::deque<Queued>> queues_;   // of each lane
  std::vector<int64_t> current_;             // of each lane: the flow that it carries, or -1
  int64_t orders_ = 0;
  std::vector<char> is_changed_;
  std::vector<int64_t> changed_;
  std::vector<int64_t> link_seen_;
  int64_t round_ = 0;
  int64_t versions_ = 0;
  std::vector<int64_t> together_, links_;
  std::vector<Numbers> routes_;
  std::vector<double> given_;
  std::vector<Finish> found_;
  MaxMin max_min_;
};

}  // namespace gradwire_simulator
