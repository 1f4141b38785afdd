// SPDX-License-Identifier: Apache-2.0
#include "compact/data/text/block_dataset.h"
#include "compact/data/samples/split.h"

#include <gmock/gmock.h>

#include <cmath>
#include <map>

#include "compact/base/check.h"
#include "tests/data/files.h"
#include "tests/data/wide_tokenizer.h"

namespace compact {
namespace {

// A token file of 0, 1, 2, ... so that a token says where it stood.
std::shared_ptr<const TokenFile> counting_file(const TextFolder& folder, uint32_t count) {
  TokenWriter writer(folder / "count.tokens", test::WideTokenizer(100000));
  for (uint32_t i = 0; i < count; ++i) writer.append(std::span(&i, 1));
  writer.finish();
  return std::make_shared<TokenFile>(folder / "count.tokens");
}

// The blocks of a batch, checked to be whole ones.
std::vector<int64_t> blocks_of(const Batch& batch, int64_t begin = 0) {
  EXPECT_EQ(batch.input.sizes(), batch.target.sizes());
  EXPECT_EQ(batch.input.scalar_type(), at::kLong);
  const int64_t rows = batch.input.size(0), size = batch.input.size(1);
  const int64_t* const input = batch.input.const_data_ptr<int64_t>();
  const int64_t* const target = batch.target.const_data_ptr<int64_t>();
  std::vector<int64_t> blocks;
  for (int64_t b = 0; b < rows; ++b) {
    EXPECT_EQ((input[b * size] - begin) % size, 0);
    blocks.push_back((input[b * size] - begin) / size);
    for (int64_t t = 0; t < size; ++t) {
      EXPECT_EQ(input[b * size + t], input[b * size] + t);
      EXPECT_EQ(target[b * size + t], input[b * size + t] + 1);
    }
  }
  return blocks;
}

TEST(BlockDataset, CountsBlocks) {
  const TextFolder folder;
  const auto file = counting_file(folder, 101);
  EXPECT_EQ(BlockDataset(file, 10, 0).blocks(), 10);  // the last target is token 100
  EXPECT_EQ(BlockDataset(file, {0, 100}, 10, 0).blocks(), 9);
  EXPECT_EQ(BlockDataset(file, 100, 0).blocks(), 1);
  EXPECT_EQ(BlockDataset(file, 1, 0).blocks(), 100);
  EXPECT_EQ(BlockDataset(file, {40, 51}, 10, 0).blocks(), 1);
}

TEST(BlockDataset, EveryBlockOncePerEpochAcrossBatches) {
  const TextFolder folder;
  const auto file = counting_file(folder, 150);
  for (const int64_t batch : {1, 3, 7, 20, 61}) {
    BlockDataset data(file, {10, 150}, 10, 5);
    ASSERT_EQ(data.blocks(), 13);
    std::vector<int64_t> order;
    while (order.size() < 13 * 5) {
      const Batch next = data.next(batch);
      EXPECT_EQ(next.input.size(0), batch);
      for (const int64_t block : blocks_of(next, 10)) order.push_back(block);
    }
    std::vector<std::vector<int64_t>> epochs;
    for (int epoch = 0; epoch < 5; ++epoch) {
      epochs.emplace_back(order.begin() + 13 * epoch, order.begin() + 13 * (epoch + 1));
      std::vector<int64_t> sorted = epochs.back();
      std::sort(sorted.begin(), sorted.end());
      for (int64_t i = 0; i < 13; ++i) EXPECT_EQ(sorted[i], i);
    }
    EXPECT_NE(epochs[0], epochs[1]);
    EXPECT_EQ(data.position().epoch, static_cast<int64_t>(order.size()) / 13);
    EXPECT_EQ(data.position().index, static_cast<int64_t>(order.size()) % 13);
  }
}

TEST(BlockDataset, SeekContinuesExactly) {
  const TextFolder folder;
  const auto file = counting_file(folder, 1000);
  BlockDataset through(file, 7, 3);
  std::vector<std::pair<DataPosition, std::vector<int64_t>>> history;
  for (int step = 0; step < 80; ++step) {
    const DataPosition at = through.position();
    history.emplace_back(at, blocks_of(through.next(5)));
  }
  EXPECT_GT(through.position().epoch, 1);
  for (const auto& [at, blocks] : history) {
    BlockDataset fresh(file, 7, 3);
    fresh.seek(at);
    EXPECT_EQ(fresh.position(), at);
    EXPECT_EQ(blocks_of(fresh.next(5)), blocks);
  }
}

// Several ranks of a run rely on this: each skips the samples of the others.
TEST(BlockDataset, SkipsWhatNextWouldGive) {
  const TextFolder folder;
  const auto file = counting_file(folder, 1000);
  for (const int64_t count : {0, 1, 8, 142, 143, 400}) {
    BlockDataset read(file, 7, 3), skipped(file, 7, 3);
    for (BlockDataset* data : {&read, &skipped}) data->next(11);
    for (int64_t i = 0; i < count; ++i) read.next(1);
    skipped.skip(count);
    EXPECT_EQ(skipped.position(), read.position()) << count;
    EXPECT_EQ(blocks_of(skipped.next(3)), blocks_of(read.next(3))) << count;
  }
  BlockDataset data(file, 7, 3);
  EXPECT_THROW(data.skip(-1), InputError);
}

TEST(BlockDataset, OrderDependsOnTheSeedOnly) {
  const TextFolder folder;
  const auto file = counting_file(folder, 1000);
  const auto first = [&](uint64_t seed) { return blocks_of(BlockDataset(file, 7, seed).next(50)); };
  EXPECT_EQ(first(1), first(1));
  EXPECT_NE(first(1), first(2));
}

TEST(BlockDataset, InOrderForEvaluation) {
  const TextFolder folder;
  const BlockDataset data(counting_file(folder, 60), {20, 60}, 9, 0);
  ASSERT_EQ(data.blocks(), 4);
  EXPECT_THAT(blocks_of(data.in_order(0, 4), 20), testing::ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(blocks_of(data.in_order(3, 1), 20), testing::ElementsAre(3));
  EXPECT_THAT(blocks_of(data.numbered(std::vector<int64_t>{3, 0}), 20), testing::ElementsAre(3, 0));
  for (const auto& [from, count] :
       {std::pair<int64_t, int64_t>{-1, 1}, {4, 1}, {0, 5}, {INT64_MAX, 2}}) {
    EXPECT_THAT(one_line_error_of([&, f = from, c = count] { data.in_order(f, c); }),
                HasSubstr("must be within 4"));
  }
  EXPECT_THAT(one_line_error_of([&] { data.in_order(0, 0); }), HasSubstr("must be positive, is 0"));
}

// A part of a set that is sorted by class has all of its classes, and is the same every time.
TEST(SomeSamples, AreDrawnFromTheWhole) {
  const std::vector<int64_t> some = some_samples(1000, 100);
  ASSERT_EQ(some.size(), 100u);
  EXPECT_TRUE(std::ranges::is_sorted(some));
  EXPECT_EQ(std::ranges::adjacent_find(some), some.end());
  for (int64_t tenth = 0; tenth < 10; ++tenth) {
    const auto there = std::ranges::count_if(some, [&](int64_t i) { return i / 100 == tenth; });
    EXPECT_GE(there, 3) << tenth;
    EXPECT_LE(there, 20) << tenth;
  }
  EXPECT_EQ(some, some_samples(1000, 100));
  EXPECT_EQ(some_samples(5, 0), all_samples(5));
  EXPECT_EQ(some_samples(5, 9), all_samples(5));
}

TEST(BlockDataset, BadArguments) {
  const TextFolder folder;
  const auto file = counting_file(folder, 100);
  const auto fails = [&](TokenRange range, int64_t block_size) {
    return one_line_error_of([&] { BlockDataset(file, range, block_size, 0); });
  };
  EXPECT_EQ(fails({0, 100}, 100),
            file->path() + ": block_size 100 needs at least 101 tokens, there are 100");
  EXPECT_THAT(fails({50, 50}, 1), HasSubstr("needs at least 2 tokens, there are 0"));
  EXPECT_THAT(fails({0, 100}, INT64_MAX), HasSubstr("needs at least 9223372036854775808 tokens"));
  EXPECT_THAT(fails({0, 100}, 0), HasSubstr("block_size must be positive, is 0"));
  EXPECT_THAT(fails({0, 100}, -3), HasSubstr("block_size must be positive, is -3"));
  EXPECT_THAT(fails({0, 101}, 5), HasSubstr("must be within 100"));
  EXPECT_THAT(fails({60, 50}, 5), HasSubstr("must be within 100"));
  BlockDataset data(file, 10, 0);
  EXPECT_THAT(one_line_error_of([&] { data.next(0); }),
              HasSubstr("batch size must be positive, is 0"));
  EXPECT_THAT(one_line_error_of([&] { data.next(-1); }),
              HasSubstr("batch size must be positive, is -1"));
  for (const DataPosition bad : {DataPosition{-1, 0}, {0, -1}, {0, 9}}) {
    EXPECT_THAT(one_line_error_of([&] { data.seek(bad); }), HasSubstr("index in [0, 9)"));
  }
}

TEST(SplitEnd, HoldsOutTheEnd) {
  EXPECT_EQ(split_end(100, 0.1), (std::pair<TokenRange, TokenRange>{{0, 90}, {90, 100}}));
  EXPECT_EQ(split_end(9, 0.1), (std::pair<TokenRange, TokenRange>{{0, 9}, {9, 9}}));
  EXPECT_EQ(split_end(0, 0.5), (std::pair<TokenRange, TokenRange>{{0, 0}, {0, 0}}));
  for (const double bad : {0.0, 1.0, -0.1, 2.0, std::nan(""), HUGE_VAL}) {
    EXPECT_THAT(one_line_error_of([&] { split_end(100, bad); }),
                HasSubstr("validation_split must be above 0"));
  }
}

}  // namespace
}  // namespace compact
