// SPDX-License-Identifier: Apache-2.0
#include "compact/data/tokenizers/class_names.h"

#include <map>
#include <set>
#include <sstream>

namespace compact {
namespace {

// "Class: types of models", as TOKENIZER_MAPPING_NAMES of transformers 5.24 has them: classes that
// make a tokenizer of their own, and the types that read every tokenizer as it is. `!` marks a type
// that has its class whatever a folder names.
const char* const kClasses = R"(
AlbertTokenizer: albert yoso BarthezTokenizer: BartphoTokenizer: BartTokenizer: florence2
BertGenerationTokenizer: bert-generation BertJapaneseTokenizer: BertTokenizer: align bark bert
blip bros chinese_clip convbert distilbert electra ernie flava git grounding-dino layoutlm
megatron-bert mm-grounding-dino nomic_bert squeezebert tvp vilt visual_bert BertweetTokenizer:
BigBirdTokenizer: big_bird BioGptTokenizer: biogpt BlenderbotSmallTokenizer: blenderbot-small
BlenderbotTokenizer: blenderbot ByT5Tokenizer: CamembertTokenizer: camembert CanineTokenizer:
canine CLIPTokenizer: aimv2 clip clipseg groupvit omdet-turbo oneformer owlv2 owlvit sam3
sam3_video xclip ClvpTokenizer: clvp CodeLlamaTokenizer: CohereTokenizer: aya_vision cohere
cohere2 ConvBertTokenizer: CpmAntTokenizer: cpmant CpmTokenizer: CTRLTokenizer: ctrl
DebertaTokenizer: deberta DebertaV2Tokenizer: deberta-v2 DiaTokenizer: dia DistilBertTokenizer:
DPRContextEncoderTokenizer: DPRQuestionEncoderTokenizer: dpr DPRReaderTokenizer: EsmcTokenizer:
esmc esmfold2 EsmTokenizer: esm FastSpeech2ConformerTokenizer: fastspeech2_conformer
FlaubertTokenizer: flaubert FNetTokenizer: fnet FSMTTokenizer: fsmt FunnelTokenizer: funnel
GemmaTokenizer: diffusion_gemma gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text
recurrent_gemma shieldgemma2 t5gemma zaya GPT2Tokenizer: !hyperclovax_vision_v2 blip-2 codegen
dbrx emu3 gpt2 gpt_neo gptj instructblip instructblipvideo jais2 opt phi starcoder2
GPTNeoXJapaneseTokenizer: gpt_neox_japanese GPTNeoXTokenizer: falcon_mamba gpt_neox mamba mamba2
mpt olmo olmoe rwkv xlstm GPTSw3Tokenizer: gpt-sw3 HerbertTokenizer: LasrTokenizer: lasr_ctc
lasr_encoder LayoutLMv2Tokenizer: layoutlmv2 LayoutLMv3Tokenizer: layoutlmv3 LayoutXLMTokenizer:
layoutxlm LEDTokenizer: led LlamaTokenizer: idefics idefics2 LukeTokenizer: luke LxmertTokenizer:
lxmert M2M100Tokenizer: m2m_100 MarianTokenizer: marian MarkupLMTokenizer: markuplm
MBart50Tokenizer: MBartTokenizer: mbart MgpstrTokenizer: mgp-str MLukeTokenizer:
MobileBertTokenizer: mobilebert MPNetTokenizer: mpnet MvpTokenizer: mvp MyT5Tokenizer:
NllbTokenizer: nllb-moe NougatTokenizer: pp_formulanet OpenAIGPTTokenizer: openai-gpt
PegasusTokenizer: pegasus PerceiverTokenizer: perceiver PhobertTokenizer: PLBartTokenizer: plbart
Pop2PianoTokenizer: ProphetNetTokenizer: prophetnet Qwen2Tokenizer: !qwen2 audioflamingo3 colqwen2
cosmos3_omni dots3_note fun_asr_nano hunyuan_vl internvl lighton_ocr moss_transcribe_diarize ovis2
qianfan_ocr qwen2_5_omni qwen2_5_vl qwen2_audio qwen2_moe qwen2_vl qwen3 qwen3_asr qwen3_moe
qwen3_next qwen3_omni_moe qwen3_vl qwen3_vl_moe vibevoice Qwen3_5Tokenizer: !qwen3_5 !qwen3_5_moe
!qwen3_5_moe_text !qwen4_exp qwen3_5_text RagTokenizer: rag ReformerTokenizer: reformer
RemBertTokenizer: rembert RobertaTokenizer: bart bridgetower clap data2vec-text ibert lilt
longformer mra roberta roberta-prelayernorm RoCBertTokenizer: roc_bert RoFormerTokenizer: roformer
SeamlessM4TTokenizer: seamless_m4t seamless_m4t_v2 Siglip2Tokenizer: !siglip2 SiglipTokenizer:
siglip Speech2TextTokenizer: speech_to_text SpeechT5Tokenizer: speecht5 SplinterTokenizer:
splinter T5Tokenizer: mt5 musicgen musicgen_melody switch_transformers t5 TapasTokenizer: tapas
Tipsv2Tokenizer: tipsv2 TokenizersBackend: arctic aria beam bigbird_pegasus camembertv2-base
canary chatlm cohere_asr ernie4_5 ernie4_5_moe EvollaModel flex_olmo fuyu glm glm4 glm4_moe
glm4_moe_lite glm4v glm4v_moe glm_image glmasr got_ocr2 gpt_bigcode gradium_phonon_tts granite
granitemoe granitemoehybrid granitemoeshared h2ovl_chat hyperclovax hyperclovax_vlm internlm2
internlm3 iquestcoder jamba kimi_k25 kimi_linear kosmos-2 llava llava_next mimo_v2_flash minicpm3
minicpm_ocr minicpmv minicpmv4_6 minicpmv4_7 minimax_m2 ministral ministral3 mistral mistral3
mistral_large4 mixtral modernbert modernbert-decoder molmo molmo2 nemo_speechlm nemotron nvfp4
nystromformer olmo2 olmo3 olmo_hybrid omniasr opencua openvla paddleocr_vl pegasus_x persimmon
phi3 phi3_v phimoe pix2struct pixtral pocket_tts smolvlm stablelm step3_vl umt5 vipllava voxtral
voxtral_realtime xlm-roberta-xl UdopTokenizer: udop VideoPrismTokenizer: videoprism VitsTokenizer:
vits Wav2Vec2CTCTokenizer: data2vec-audio hubert unispeech unispeech-sat wav2vec2 wav2vec2-bert
wav2vec2-conformer Wav2Vec2PhonemeCTCTokenizer: WhisperTokenizer: whisper XGLMTokenizer: xglm
XLMRobertaTokenizer: gte jina_embeddings_v3 metaclip_2 trocr xlm-roberta xmod XLMTokenizer: xlm
XLNetTokenizer: xlnet
)";

// Names of classes of the table.
const std::map<std::string, std::string> kOtherNames = {
    {"BartTokenizer", "RobertaTokenizer"},       {"CodeGenTokenizer", "GPT2Tokenizer"},
    {"ElectraTokenizer", "BertTokenizer"},       {"DistilBertTokenizer", "BertTokenizer"},
    {"LayoutLMTokenizer", "BertTokenizer"},      {"LEDTokenizer", "RobertaTokenizer"},
    {"LongformerTokenizer", "RobertaTokenizer"}, {"LxmertTokenizer", "BertTokenizer"},
    {"MobileBertTokenizer", "BertTokenizer"},    {"MvpTokenizer", "RobertaTokenizer"},
    {"Phi3Tokenizer", "LlamaTokenizer"},         {"SqueezeBertTokenizer", "BertTokenizer"}};

struct Names {
  std::set<std::string> classes;
  std::map<std::string, std::string> by_type;
  std::set<std::string> fixed;  // types

  Names() {
    std::istringstream words(kClasses);
    std::string name;
    for (std::string word; words >> word;) {
      if (word.ends_with(':')) {
        name = word.substr(0, word.size() - 1);
        classes.insert(name);
        continue;
      }
      const bool marked = word.starts_with('!');
      if (marked) word.erase(0, 1);
      if (marked || name == kBackendName) fixed.insert(word);
      by_type[word] = name;
    }
  }
};

const Names& names() {
  static const Names all;
  return all;
}

}  // namespace

NamedClass class_named(std::string name, const std::string& type) {
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  const auto usual = names().by_type.find(type);
  const bool fixed = names().fixed.contains(type);
  const bool by_type = name.empty() || fixed;
  if (by_type && usual != names().by_type.end()) name = usual->second;
  if (const auto other = kOtherNames.find(name); other != kOtherNames.end()) name = other->second;
  return {names().classes.contains(name) ? name : kBackendName, fixed, by_type};
}

}  // namespace compact
