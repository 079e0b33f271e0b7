// Transforms blocks of any size (gradwire/walsh.h) with few passes over memory. What the values are before
// and after is a Work's:
//
//     static constexpr bool IN_PLACE;                              // they are what `between` holds
//     Blocks blocks;
//     float* between;                                              // room for values on the way, as many as
//     all void load(int64_t unit, int count, float* values) const;     // `count` units of 128 values void
//     finish(int log, int64_t unit, int64_t step, int count, const float* values) const;
//
// `finish` takes blocks of 2^log values, transformed, or the units `unit`, `unit` + `step`, … of one. In a
// first pass tiles that fit the first cache, and then regions that fit the second, go through as many stages
// as lie in them; in a second one the rest, on columns of the values that are a region apart.
#pragma once
#include "butterflies.h"
#include "gradwire/walsh.h"

namespace gradwire {
inline namespace GRADWIRE_LEVEL {

enum {
  TILE_LOG = 12,    // values of a tile: 16 KiB
  REGION_LOG = 17,  // of a region: 512 KiB
  ROWS_LOG = 7,     // rows of columns that are transformed together, at most
  COLUMNS = UNIT,
  TILE = 1 << TILE_LOG,
  REGION = 1 << REGION_LOG,
};

// Stages of the first pass of a block that is larger than a region.
GRADWIRE_HD int near_log(int log) { return log <= TILE_LOG + ROWS_LOG ? TILE_LOG : REGION_LOG; }

template <class Work>
void rotate_tile(const Work& work, int64_t first, int64_t count) {
  alignas(64) float room[TILE];
  float* values = Work::IN_PLACE ? work.between + first : room;
  if (!Work::IN_PLACE) work.load(first / UNIT, (int)(count / UNIT), values);
  const int64_t largest_end = work.blocks.total >> work.blocks.log << work.blocks.log;
  for (int64_t done = 0; done < count;) {
    const int log = log_at(work.blocks, first + done);
    const int64_t here = log == work.blocks.log ? largest_end - first : done + ((int64_t)1 << log);
    const int64_t run = smaller(here, count) - done;
    if (log > TILE_LOG) {
      transform_blocks(values, work.between + first, run, TILE_LOG, false, 1.0f);
    } else {
      transform_blocks(values + done, values + done, run, log, true, scale_of(log));
      if (!Work::IN_PLACE) work.finish(log, (first + done) / UNIT, 1, (int)(run / UNIT), values + done);
    }
    done += run;
  }
}

// The stages that pair 2^rows_log rows, 2^near values long, from `start` on, for some of their columns.
template <class Work>
void rotate_columns(const Work& work, int log, int64_t start, int near, int rows_log, int64_t begin,
                    int64_t end) {
  alignas(64) float values[COLUMNS << ROWS_LOG];
  const int rows = 1 << rows_log;
  const int64_t stride = (int64_t)1 << near;
  const bool all = near + rows_log == log, finish = all && !Work::IN_PLACE;
  const float scale = scale_of(log);
  for (int64_t column = begin; column < end; column += COLUMNS) {
    float* const memory = work.between + start + column;
    for (int stage = 0, stages; stage < rows_log; stage += stages) {
      stages = next_stages(rows_log - stage);
      // Rows are brought together by the first pass, and taken back by the last one.
      const bool first = stage == 0, last = stage + stages == rows_log, back = last && !finish;
      const float* source = first ? memory : values;
      float* target = back ? memory : values;
      const int64_t from = first ? stride : (int64_t)COLUMNS, to = back ? stride : (int64_t)COLUMNS;
      for (int high = 0; high < rows; high += 1 << (stage + stages))
        for (int row = high; row < high + (1 << stage); ++row)
          row_stages(last && all, stages, source + row * from, from << stage, target + row * to, to << stage,
                     COLUMNS, scale);
    }
    if (finish) work.finish(log, (start + column) / UNIT, stride / UNIT, rows, values);
  }
}

// The first pass; an item is a region.
GRADWIRE_HD int64_t regions_of(const Blocks& blocks) { return divide_up(blocks.total, REGION); }
template <class Work>
void rotate_near(const Work& work, int64_t begin, int64_t end) {
  for (int64_t region = begin; region < end; ++region) {
    const int64_t first = region * REGION, stop = smaller(first + REGION, work.blocks.total);
    for (int64_t tile = first; tile < stop; tile += TILE)
      rotate_tile(work, tile, smaller(stop - tile, (int64_t)TILE));
    for (int64_t start = first; start < stop && work.blocks.log > TILE_LOG;) {
      const int log = log_at(work.blocks, start), here = log < REGION_LOG ? log : REGION_LOG;
      if (here > TILE_LOG && (log == here || near_log(log) == REGION_LOG))
        rotate_columns(work, log, start, TILE_LOG, here - TILE_LOG, 0, TILE);
      start += (int64_t)1 << here;
    }
  }
}

// The second pass, for blocks larger than a region; an item is as many values as one.
GRADWIRE_HD int64_t far_regions_of(const Blocks& blocks) {
  return blocks.log > REGION_LOG ? blocks.total >> REGION_LOG : 0;
}
template <class Work>
void rotate_far(const Work& work, int64_t begin, int64_t end) {
  for (int64_t region = begin; region < end; ++region) {
    const int64_t first = region * REGION;
    const int log = log_at(work.blocks, first), near = near_log(log);
    if (log <= REGION_LOG) continue;
    const int64_t start = start_of(first, log), columns = (int64_t)1 << (near - (log - REGION_LOG));
    const int64_t column = ((first - start) >> REGION_LOG) * columns;
    rotate_columns(work, log, start, near, log - near, column, column + columns);
  }
}

}  // namespace GRADWIRE_LEVEL
}  // namespace gradwire
