// SPDX-License-Identifier: Apache-2.0
#include "compact/apps/visualize.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "compact/base/check.h"
#include "compact/config/exit_codes.h"
#include "compact/report/picture.h"
#include "compact/train/trainer.h"
#include "tests/image_records.h"

namespace compact {
namespace {

using ::testing::HasSubstr;

TEST(Picture, StretchesEveryMapAlone) {
  const at::Tensor maps =
      at::tensor({1.F, 2.F, 3.F, 5.F, -1.F, -1.F, -1.F, -1.F}).view({2, 1, 2, 2});
  const at::Tensor expected =
      at::tensor({0, 64, 128, 255, 0, 0, 0, 0}, at::kByte).view({2, 1, 2, 2});
  EXPECT_TRUE(stretched(maps).equal(expected)) << stretched(maps);
  EXPECT_NE(error_of([] { stretched(at::full({1, 1, 2, 2}, NAN)); }), "");
  EXPECT_NE(error_of([] { stretched(at::zeros({1, 2, 2, 2})); }), "");
}

// Three maps in two columns, every pixel a square of 2, white between and at the end.
TEST(Picture, TilesInRows) {
  const at::Tensor maps =
      at::tensor({10, 20, 30}, at::kByte).view({3, 1, 1, 1}).expand({3, 1, 2, 2});
  const at::Tensor p = tiled(maps, 2, 3);
  ASSERT_EQ(p.sizes(), at::IntArrayRef({2 * 6 + 2, 2 * 6 + 2, 3}));
  const auto at_pixel = [&](int64_t y, int64_t x) { return p[y][x][1].item<int>(); };
  EXPECT_EQ(at_pixel(1, 3), 255);
  EXPECT_EQ(at_pixel(2, 2), 10);
  EXPECT_EQ(at_pixel(5, 5), 10);
  EXPECT_EQ(at_pixel(6, 6), 255);
  EXPECT_EQ(at_pixel(2, 8), 20);
  EXPECT_EQ(at_pixel(8, 2), 30);
  EXPECT_EQ(at_pixel(8, 8), 255);  // no fourth
}

class Visualize : public ::testing::Test {
 protected:
  Visualize() {
    write_images(folder_ / "train.bin", 40);
    for (const char* preset : {"off", "pool"}) {
      TrainConfig c;
      c.task = "image-classification";
      c.model = "resnet20";
      c.width_mult = 0.25;
      c.train_file = {(folder_ / "train.bin").string()};
      c.max_steps = 1;
      c.per_device_train_batch_size = 4;
      c.preset = preset;
      c.device = "cpu";
      c.output_dir = (folder_ / preset).string();
      std::ostringstream console;
      EXPECT_EQ(train(c, console), kExitOk) << console.str();
    }
    options_.folders = {(folder_ / "off/").string(), (folder_ / "pool").string()};
    options_.config.validation_file = {(folder_ / "train.bin").string()};
    options_.config.output_dir = (folder_ / "pictures").string();
    options_.config.device = "cpu";
    options_.layers = {"stem", "layer2.*"};
  }
  std::string error(const std::function<void(VisualizeOptions&)>& change) {
    VisualizeOptions o = options_;
    change(o);
    std::ostringstream out;
    return error_of([&] { visualize(o, out, warnings_); });
  }

  TemporaryFolder folder_;
  VisualizeOptions options_;
  std::vector<std::string> warnings_;
};

TEST_F(Visualize, DrawsFiltersAndMapsOfEveryModel) {
  std::ostringstream out;
  visualize(options_, out, warnings_);
  EXPECT_THAT(warnings_, ::testing::IsEmpty());
  const std::string page = slurp(folder_ / "pictures/index.html");
  for (const std::string model : {"off", "pool"}) {
    for (const std::string what :
         {"image", "filters", "stem", "layer2.0", "layer2.1", "layer2.2"}) {
      const std::string file = model + "-" + what + ".png";
      EXPECT_EQ(slurp(folder_ / "pictures" / file).substr(1, 3), "PNG") << file;
      EXPECT_THAT(page, HasSubstr("src=\"" + file));
      EXPECT_THAT(out.str(), HasSubstr(file));
    }
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "pictures/off-layer1.0.png"));
  // The same image, whatever the model.
  EXPECT_EQ(slurp(folder_ / "pictures/off-image.png"), slurp(folder_ / "pictures/pool-image.png"));
}

// Folders of the same name are told apart, and layers may be those of one model only.
TEST_F(Visualize, ModelsThatDiffer) {
  const auto copy = [&](const std::string& to) {
    std::filesystem::create_directories((folder_ / to).parent_path());
    std::filesystem::copy(folder_ / "off", folder_ / to, std::filesystem::copy_options::recursive);
    options_.folders.push_back((folder_ / to).string());
  };
  copy("x/off");
  copy("y/off-2");
  copy("z/a b#");
  options_.layers = {"layer3.2"};
  std::ostringstream out;
  visualize(options_, out, warnings_);
  EXPECT_THAT(warnings_, ::testing::IsEmpty());
  for (const char* label : {"off", "off-2", "off-2-2", "a_b_"}) {
    const std::string file = cat(label, "-layer3.2.png");
    EXPECT_EQ(slurp(folder_ / "pictures" / file), slurp(folder_ / "pictures/off-layer3.2.png"));
    EXPECT_THAT(slurp(folder_ / "pictures/index.html"), HasSubstr("src=\"" + file));
  }
}

TEST_F(Visualize, ErrorsNameTheRule) {
  std::filesystem::create_directories(folder_ / "text");
  spill(folder_ / "text/config.json", R"({"model_type": "llama"})");
  EXPECT_THAT(error([&](auto& o) { o.folders.push_back((folder_ / "text").string()); }),
              HasSubstr("of task language-modeling"));
  EXPECT_THAT(error([&](auto& o) { o.config.output_dir = (folder_ / "train.bin").string(); }),
              HasSubstr("train.bin"));
  EXPECT_THAT(error([](auto& o) { o.config.device = "gpu"; }), HasSubstr("--device"));
  EXPECT_THAT(error([](auto& o) { o.image = 40; }), HasSubstr("--image must be in [0, 40)"));
  EXPECT_THAT(error([](auto& o) { o.layers = {"layer4.0"}; }), HasSubstr("no layer `layer4.0`"));
  EXPECT_THAT(error([](auto& o) { o.channels = 0; }), HasSubstr("--max_channels"));
  EXPECT_THAT(error([](auto& o) { o.folders.clear(); }), HasSubstr("--model_name_or_path"));
  EXPECT_THAT(error([](auto& o) { o.config.output_dir.clear(); }), HasSubstr("--output_dir"));
  EXPECT_THAT(error([](auto& o) { o.config.validation_file.clear(); }),
              HasSubstr("--validation_file"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "pictures"));
}

}  // namespace
}  // namespace compact
