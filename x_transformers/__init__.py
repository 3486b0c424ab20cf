"""A concise, complete and fast transformer library. Every paper is a keyword."""

import torch as _torch
from einops import rearrange as _rearrange

from x_transformers import x_transformers as _core
from x_transformers.act import ACT
from x_transformers.autoregressive_wrapper import AutoregressiveWrapper, Generated, PromptCache
from x_transformers.belief_state_wrapper import BeliefStateWrapper
from x_transformers.classifier import Classifier
from x_transformers.compat.helpers import default_device
from x_transformers.continuous import ContinuousAutoregressiveWrapper, ContinuousTransformerWrapper
from x_transformers.dpo import DPO
from x_transformers.early_exit import EarlyExitWrapper
from x_transformers.encoder_decoder import EncoderDecoder, XTransformer
from x_transformers.entropy_based_tokenizer import EntropyBasedTokenizer
from x_transformers.features.converting import mean_pool_kv_heads_, sparsify_
from x_transformers.features.layouts import layer_schedule
from x_transformers.features.norms import AdaptiveRMSNorm, RMSNorm
from x_transformers.finetuning import TextToText, finetune, freeze_pretrained_
from x_transformers.generation.batching import Paged, PagedEngine
from x_transformers.memory import KNNDatastore, KNNLMWrapper, SPALMWrapper
from x_transformers.modalities.conformer import ConformerEncoder
from x_transformers.modalities.dalle import DALLE
from x_transformers.modalities.decision import DecisionTransformer
from x_transformers.modalities.dmol import DMOLHead
from x_transformers.modalities.joint_attention import JointAttention
from x_transformers.modalities.perceiver import Perceiver, PerceiverIO
from x_transformers.modalities.retro import ChunkedCrossAttention
from x_transformers.modalities.two_towers import TwoTowers
from x_transformers.modalities.vector_quantizer import VectorQuantizer
from x_transformers.modalities.video import FactorizedVideoEncoder
from x_transformers.modalities.vit import ViTransformerWrapper
from x_transformers.multi_input import MultiInputAutoregressiveWrapper, MultiInputTransformerWrapper
from x_transformers.muse import Muse
from x_transformers.neo_mlp import NeoMLP
from x_transformers.next_latent_wrapper import NextLatentWrapper
from x_transformers.nonautoregressive_wrapper import NonAutoregressiveWrapper
from x_transformers.objectives.masked import MLMWrapper
from x_transformers.objectives.permutation import PermutationLMWrapper
from x_transformers.objectives.sentence_pairs import BertPretrainWrapper
from x_transformers.objectives.simpo import SimPO
from x_transformers.objectives.span_corruption import SpanCorruption, T5PretrainWrapper, UL2Mixture
from x_transformers.parti import Parti
from x_transformers.speech import LogMelSpectrogram, SpeechEncoder
from x_transformers.training.optim import param_groups
from x_transformers.vision_language import VisionLanguageWrapper
from x_transformers.x_transformers import (
    Attention,
    AttentionLayers,
    AttentionPool,
    CrossAttender,
    Decoder,
    Encoder,
    FeedForward,
    PrefixDecoder,
    TransformerBlock,
    TransformerWrapper,
)
from x_transformers.xl_autoregressive_wrapper import XLAutoregressiveWrapper
from x_transformers.xval import XValAutoregressiveWrapper, XValTransformerWrapper

__version__ = '0.1.0'

# At its first call einops notes how it handles a kind of tensor: a compiled graph that saw it would be compiled again.
for _kind in (_torch.empty(1), _torch.nn.Parameter(_torch.empty(1))):
    _rearrange(_kind, 'n -> n')

# Published code imports these from the module of the model, which cannot import them itself: their modules import it.
_core.__dict__.update(XTransformer=XTransformer, ViTransformerWrapper=ViTransformerWrapper)

__all__ = [
    'ACT',
    'DALLE',
    'DPO',
    'AdaptiveRMSNorm',
    'Attention',
    'AttentionLayers',
    'AttentionPool',
    'AutoregressiveWrapper',
    'BeliefStateWrapper',
    'BertPretrainWrapper',
    'ChunkedCrossAttention',
    'Classifier',
    'ConformerEncoder',
    'ContinuousAutoregressiveWrapper',
    'ContinuousTransformerWrapper',
    'CrossAttender',
    'DMOLHead',
    'DecisionTransformer',
    'Decoder',
    'EarlyExitWrapper',
    'Encoder',
    'EncoderDecoder',
    'EntropyBasedTokenizer',
    'FactorizedVideoEncoder',
    'FeedForward',
    'Generated',
    'JointAttention',
    'KNNDatastore',
    'KNNLMWrapper',
    'LogMelSpectrogram',
    'MLMWrapper',
    'MultiInputAutoregressiveWrapper',
    'MultiInputTransformerWrapper',
    'Muse',
    'NeoMLP',
    'NextLatentWrapper',
    'NonAutoregressiveWrapper',
    'Paged',
    'PagedEngine',
    'Parti',
    'Perceiver',
    'PerceiverIO',
    'PermutationLMWrapper',
    'PrefixDecoder',
    'PromptCache',
    'RMSNorm',
    'SPALMWrapper',
    'SimPO',
    'SpanCorruption',
    'SpeechEncoder',
    'T5PretrainWrapper',
    'TextToText',
    'TransformerBlock',
    'TransformerWrapper',
    'TwoTowers',
    'UL2Mixture',
    'VectorQuantizer',
    'ViTransformerWrapper',
    'VisionLanguageWrapper',
    'XLAutoregressiveWrapper',
    'XTransformer',
    'XValAutoregressiveWrapper',
    'XValTransformerWrapper',
    'default_device',
    'finetune',
    'freeze_pretrained_',
    'layer_schedule',
    'mean_pool_kv_heads_',
    'param_groups',
    'sparsify_',
]
