// Max-min fair sharing by progressive filling: of all links the one that can give its flows least gives each
// of them an equal share, which they keep; the rest is shared again.
#pragma once
#include <stdint.h>

#include <vector>

namespace gradwire_simulator {

// Some numbers of a table: the links that a flow takes, the messages of a post.
struct Numbers {
  const int64_t* first;
  int64_t count;
  const int64_t* begin() const { return first; }
  const int64_t* end() const { return first + count; }
};

class MaxMin {
 public:
  explicit MaxMin(int64_t links) : place_((size_t)links) {}

  // given[f] for each route, `links` being those that are taken, ascending.
  void share(const std::vector<Numbers>& routes, const std::vector<int64_t>& links, const double* rates,
             std::vector<double>& given) {
    left_.clear();
    for (const int64_t link : links) {
      place_[(size_t)link] = left_.size();
      left_.push_back(rates[link]);
    }
    list_flows(routes);
    given.assign(routes.size(), 0);
    has_.assign(routes.size(), 0);
    for (size_t fixed = 0; fixed < routes.size();) {
      const size_t narrowest = find_narrowest();
      const double share = left_[narrowest] / (double)open_[narrowest];
      for (size_t i = first_[narrowest]; i < first_[narrowest + 1]; ++i) {
        const size_t flow = flows_[i];
        if (has_[flow]) continue;
        has_[flow] = 1;
        given[flow] = share;
        ++fixed;
        for (const int64_t link : routes[flow]) {
          left_[place_[(size_t)link]] -= share;
          --open_[place_[(size_t)link]];
        }
      }
    }
  }

 private:
  // Flows of each link, in order: flows_[first_[l]] to before flows_[first_[l + 1]].
  void list_flows(const std::vector<Numbers>& routes) {
    open_.assign(left_.size(), 0);
    for (const Numbers& route : routes)
      for (const int64_t link : route) ++open_[place_[(size_t)link]];
    first_.assign(1, 0);
    for (const int64_t count : open_) first_.push_back(first_.back() + (size_t)count);
    next_ = first_;
    flows_.resize(first_.back());
    for (size_t flow = 0; flow < routes.size(); ++flow)
      for (const int64_t link : routes[flow]) flows_[next_[place_[(size_t)link]]++] = flow;
  }

  // The first of those that can give least.
  size_t find_narrowest() const {
    size_t narrowest = left_.size();
    double least = 0;
    for (size_t link = 0; link < left_.size(); ++link) {
      if (!open_[link]) continue;
      const double share = left_[link] / (double)open_[link];
      if (narrowest == left_.size() || share < least) narrowest = link, least = share;
    }
    return narrowest;
  }

  std::vector<size_t> place_;  // of a link, among those that are taken
  std::vector<double> left_;
  std::vector<int64_t> open_;  // flows without a rate
  std::vector<size_t> first_, next_, flows_;
  std::vector<char> has_;
};

}  // namespace gradwire_simulator
