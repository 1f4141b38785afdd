// SPDX-License-Identifier: Apache-2.0
#include "compact/models/image_processor.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "compact/base/check.h"
#include "compact/base/model_numbers.h"
#include "compact/io/config_keys.h"
#include "compact/io/json_file.h"

namespace compact {
namespace {

using nlohmann::json;

// A key of this program's own, which transformers does not read: whether images are cut or
// stretched to the size.
constexpr const char *kFitKey = "compact_fit", *kCut = "cut", *kStretched = "stretched";

// The defaults of the image processors of transformers, for keys that their file lacks.
struct Processor {
  const char* type;
  bool stretches;  // where `size` is a number
  bool cuts;       // do_center_crop
  bool bicubic;
};
constexpr Processor kProcessors[] = {{"ViT", true, false, false},
                                     {"DeiT", true, true, true},
                                     {"ConvNext", false, false, true},
                                     {"CLIP", false, true, true},
                                     {"Bit", false, true, true}};

const Processor& processor_of(const ConfigKeys& keys) {
  const std::string type =
      keys.text("image_processor_type", keys.text("feature_extractor_type", ""));
  for (const Processor& p : kProcessors) {
    for (const char* ending :
         {"ImageProcessor", "ImageProcessorFast", "ImageProcessorPil", "FeatureExtractor"}) {
      if (type == std::string(p.type) + ending) return p;
    }
  }
  fail(keys.where(),
       ": image_processor_type must be that of ViT, DeiT, ConvNext, CLIP or Bit, is `", type, "`");
}

struct Sides {
  int64_t height = 0, width = 0, shortest = 0;  // shortest: both follow from it
};

// A number, or an object of height and width or of the shortest edge.
std::optional<Sides> read_sides(const ConfigKeys& keys, const char* key, bool square) {
  const json* value = keys.find(key);
  if (!value) return std::nullopt;
  Sides sides;
  if (value->is_object()) {
    const ConfigKeys inner(*value, keys.where() + ": " + key);
    if (inner.find("shortest_edge")) {
      sides.shortest = inner.required_integer("shortest_edge");
      COMPACT_CHECK(value->size() == 1, inner.where(), ": shortest_edge must stand alone, is ",
                    value->dump());
    } else {
      sides.height = inner.required_integer("height");
      sides.width = inner.required_integer("width");
    }
  } else {
    const int64_t side = keys.required_integer(key);
    square ? sides.height = sides.width = side : sides.shortest = side;
  }
  for (const int64_t side : {sides.height + sides.shortest, sides.width + sides.shortest}) {
    COMPACT_CHECK(side >= 1 && side <= 4096, keys.where(), ": ", key,
                  " must be from 1 to 4096 pixels, is ", value->dump());
  }
  return sides;
}

std::vector<double> read_list(const ConfigKeys& keys, const char* key, int64_t channels) {
  const auto list = keys.required_list<double>(key);
  COMPACT_CHECK(static_cast<int64_t>(list.size()) == channels, keys.where(), ": ", key,
                " must have a value for each of ", channels, " channels, has ", list.size());
  return list;
}

// (factor pixel - mean) / deviation, in pixels of 0 to 1.
void read_scale(const ConfigKeys& keys, ModelShape& shape) {
  constexpr double kWhite = 255;
  double factor = keys.flag("do_rescale", true) ? keys.number("rescale_factor", 1 / kWhite) : 1;
  check_positive({{"rescale_factor", factor}}, keys.where());
  factor *= kWhite;
  if (std::abs(factor - 1) < 1e-12) factor = 1;
  const auto channels = static_cast<size_t>(shape.channels);
  shape.mean.assign(channels, 0);
  shape.deviation.assign(channels, 1);
  if (keys.flag("do_normalize", true)) {
    shape.mean = read_list(keys, "image_mean", shape.channels);
    shape.deviation = read_list(keys, "image_std", shape.channels);
  }
  for (const double deviation : shape.deviation) {
    check_positive({{"image_std", deviation}}, keys.where());
  }
  for (double& mean : shape.mean) mean /= factor;
  for (double& deviation : shape.deviation) deviation /= factor;
}

void read_fit(const ConfigKeys& keys, ModelShape& shape) {
  const Processor& p = processor_of(keys);
  if (!keys.flag("do_resize", true)) {
    COMPACT_CHECK(!keys.flag("do_center_crop", p.cuts), keys.where(),
                  ": do_center_crop must be false where do_resize is");
    return;
  }
  const std::string type = p.type;
  keys.required("size");
  const std::optional<Sides> size = read_sides(keys, "size", p.stretches);
  ImageFit& fit = shape.image_fit;
  const int64_t method = keys.integer("resample", p.bicubic ? 3 : 2);
  COMPACT_CHECK(method == 2 || method == 3, keys.where(),
                ": resample must be 2 (bilinear) or 3 (bicubic), is ", method);
  fit = {.stretch = size->shortest == 0, .bicubic = method == 3};
  const std::string own = keys.text(kFitKey, fit.stretch ? kStretched : kCut);
  COMPACT_CHECK(own == kCut || own == kStretched, keys.where(), ": ", kFitKey, " must be ", kCut,
                " or ", kStretched, ", is `", own, "`");
  fit.stretch = own == kStretched;
  const int64_t side = size->shortest;
  shape.height = side > 0 ? side : size->height;
  shape.width = side > 0 ? side : size->width;
  if (type == "ConvNext") {
    constexpr int64_t kLarge = 384;  // from which on nothing is cut
    COMPACT_CHECK(side > 0 && !keys.flag("do_center_crop", false), keys.where(),
                  ": size must be shortest_edge and do_center_crop false with ", type,
                  "ImageProcessor");
    const double part = keys.number("crop_pct", 224.0 / 256);
    COMPACT_CHECK(part > 0 && part <= 1, keys.where(),
                  ": crop_pct must be above 0 and at most 1, is ", part);
    fit.stretch = side >= kLarge;
    if (!fit.stretch) {
      fit.middle = static_cast<double>(side) / std::floor(static_cast<double>(side) / part);
    }
    return;
  }
  if (!keys.flag("do_center_crop", p.cuts)) {
    COMPACT_CHECK(side == 0, keys.where(), ": do_center_crop must be true where size is ",
                  "shortest_edge, since a model reads images of one size");
    return;
  }
  keys.required("crop_size");
  const std::optional<Sides> cut = read_sides(keys, "crop_size", true);
  COMPACT_CHECK(cut->shortest == 0 && cut->height <= shape.height && cut->width <= shape.width &&
                    cut->height * shape.width == cut->width * shape.height,
                keys.where(), ": crop_size must be a part of size with its proportions, is ",
                keys.required("crop_size").dump(), " of ", keys.required("size").dump());
  fit.middle = static_cast<double>(cut->height) / static_cast<double>(shape.height);
  shape.height = cut->height;
  shape.width = cut->width;
}

}  // namespace

void read_image_processor(const json& processor, std::string_view where, ModelShape& shape) {
  const ConfigKeys keys(processor, std::string(where));
  for (const char* key : {"do_pad", "do_flip_channel_order", "do_reduce_labels", "rescale_offset",
                          "do_thumbnail", "do_crop_margin"}) {
    COMPACT_CHECK(!keys.flag(key, false), where, ": ", key, " must be false, is true");
  }
  read_scale(keys, shape);
  read_fit(keys, shape);
}

void fit_to_processor(ModelConfig& model, const json& config, const std::filesystem::path& folder,
                      const char* usual) {
  const std::filesystem::path file = folder / "preprocessor_config.json";
  if (!std::filesystem::exists(file)) return;
  json processor = read_json(file);
  COMPACT_CHECK(processor.is_object(), file.string(), ": must be a JSON object");
  if (!processor.contains("image_processor_type") &&
      !processor.contains("feature_extractor_type")) {
    processor["image_processor_type"] = usual;
  }
  // This program once wrote no more than that, and cut images.
  const bool once = config.contains("image_mean") && !processor.contains("resample");
  if (once && !processor.contains(kFitKey)) processor[kFitKey] = kCut;
  ModelShape shape = model.shape();
  const std::pair own(shape.height, shape.width);
  read_image_processor(processor, file.string(), shape);
  COMPACT_CHECK(!config.contains("image_size") || own == std::pair(shape.height, shape.width),
                file.string(), ": images become ", shape.height, " x ", shape.width,
                ", the model reads ", own.first, " x ", own.second);
  model.fit(shape);
}

std::map<std::string, std::string> image_processor_files(const ModelShape& shape) {
  const ImageFit& fit = shape.image_fit;
  const auto whole = [&](int64_t side) {
    return std::llround(static_cast<double>(side) / fit.middle);
  };
  const json size = {{"height", shape.height}, {"width", shape.width}},
             before = {{"height", whole(shape.height)}, {"width", whole(shape.width)}};
  json processor = {{"do_resize", true},
                    {"resample", fit.bicubic ? 3 : 2},
                    {"do_rescale", true},
                    {"rescale_factor", 1 / 255.0},
                    {"do_normalize", true},
                    {"image_mean", shape.mean},
                    {"image_std", shape.deviation},
                    {kFitKey, fit.stretch ? kStretched : kCut}};
  const bool cuts = !fit.stretch && shape.height == shape.width;
  if (cuts || (fit.stretch && fit.middle < 1)) {
    processor["image_processor_type"] = cuts ? "CLIPImageProcessor" : "DeiTImageProcessor";
    processor["size"] = cuts ? json{{"shortest_edge", whole(shape.height)}} : before;
    processor["do_center_crop"] = true;
    processor["crop_size"] = size;
    processor["do_convert_rgb"] = false;
  } else {
    processor["image_processor_type"] = "ViTImageProcessor";
    processor["size"] = size;
  }
  return {{"preprocessor_config.json", processor.dump(2) + "\n"}};
}

}  // namespace compact
