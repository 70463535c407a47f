"""The Hindi counter against sentences of our own, counted by hand after the conventions of UD_Hindi-HDTB."""

import re
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lm.curriculum.morphology import MorphologyCounts, count_morphology, sentence, tables, verbs, words_of

# Sentence: (case_markers, fused_cases, verbs, inflections, compounds).
GOLD = {
    "मैं घर जाता हूँ": (0, 0, 2, 0, 0),
    "वह स्कूल में पढ़ता है": (1, 0, 2, 0, 0),
    "लड़के ने किताब को पढ़ा था": (2, 0, 2, 2, 0),
    # पर: a postposition, "but", a wing
    "मेज पर तीन पुरानी किताबें पड़ी हैं।": (1, 0, 2, 1, 0),
    "वह समय पर आया, पर दफ्तर बंद था।": (1, 0, 2, 2, 0),
    "मैंने उसे बुलाया था पर वह नहीं आया।": (0, 2, 3, 3, 0),
    "चिड़िया ने अपने पर फैलाए और उड़ गई।": (1, 0, 3, 2, 1),
    # की: the genitive, and the perfective of करना
    "मंत्री ने नई सड़क की घोषणा की।": (2, 0, 1, 1, 0),
    "सरकार ने किसानों की मदद की है।": (2, 0, 2, 1, 0),
    "मामले की जांच की जा रही है।": (1, 0, 4, 2, 0),
    "समिति ने यह बात नहीं की थी।": (1, 0, 2, 2, 0),
    "यह दुकान मेरे भाई की है।": (1, 1, 1, 0, 0),
    "पुलिस ने पूछताछ की और उसकी गाड़ी की तलाशी ली।": (2, 1, 2, 2, 0),
    "विभाग की ओर से कोई टिप्पणी नहीं की गई।": (3, 0, 2, 2, 0),
    # कर: doing, having done, and tax
    "सरकार आय कर की दर घटा सकती है।": (1, 0, 3, 0, 0),
    "वह काम खत्म कर घर लौट गया।": (0, 0, 3, 1, 1),
    "उसने सारा काम कर लिया है।": (0, 1, 3, 1, 1),
    "सामान देख कर ही पैसे देना।": (0, 0, 3, 0, 0),
    "बच्चे खेलकर थक गए थे।": (0, 0, 4, 2, 1),
    # लिए, दिया, दी, ली: postposition, light verb, elder sister
    "माँ ने बच्चों के लिए मिठाई बनाई।": (3, 0, 1, 1, 0),
    "उन्होंने दो मकान किराए पर लिए हैं।": (1, 1, 2, 1, 0),
    "अदालत ने उसे जमानत दे दी।": (1, 1, 2, 1, 1),
    "दीपा दी ने मेरे लिए चाय बनाई।": (2, 1, 1, 1, 0),
    "इसके लिए धन दिया जाएगा।": (1, 1, 2, 2, 0),
    # nouns that look like verbs
    "बाजार में सोना और चांदी सस्ते हुए।": (1, 0, 1, 1, 0),
    "खाना मेज पर रखा है।": (1, 0, 2, 1, 0),
    "उसे रात को खाना पड़ा।": (1, 1, 2, 1, 0),
    "जनता और नेता दोनों पानी की कमी से परेशान हैं।": (2, 0, 1, 0, 0),
    "उसके पिता और माता गाँव में रहते हैं।": (1, 1, 2, 0, 0),
    "सत्ता के रास्ते में कई कठिनाइयां हैं।": (2, 0, 1, 0, 0),
    "इतना पैसा किसी के पास नहीं था।": (2, 0, 1, 1, 0),
    "जितना सपना बड़ा होगा, उतनी मेहनत लगेगी।": (0, 0, 2, 2, 0),
    "गायिका ने नया गाना गाया।": (1, 0, 1, 1, 0),
    "भाई की शादी अगले महीने है।": (1, 0, 1, 0, 0),
    "टीम की जीत के बाद खेल मंत्री ने बधाई दी।": (4, 0, 1, 1, 0),
    "बजट में सुधार की मांग पर चर्चा हुई।": (3, 0, 1, 1, 0),
    "बच्चे को अब सोना है, हम भी सोने जा रहे हैं।": (1, 0, 6, 1, 0),
    "वह बोली कि उसकी बोली मीठी है।": (0, 1, 2, 1, 0),
    "आप चाहे जितना कहें, वह सही नहीं मानेगा।": (0, 0, 2, 2, 0),
    "मैदान के चारों ओर छाया और हरा पेड़ था।": (1, 0, 1, 1, 0),
    "मेला देखने वे नदी के तट पर गए थे।": (2, 0, 3, 2, 0),
    # bare stems before auxiliaries
    "हम कल दिल्ली जा रहे हैं।": (0, 0, 3, 1, 0),
    "वह अब अपना घर बना चुका है।": (0, 0, 3, 1, 0),
    "अदालत इस मामले को सुन सकती है।": (1, 0, 3, 0, 0),
    "पुल बारिश में टूट गया।": (1, 0, 2, 1, 1),
    "उन्होंने यह बता भी दिया कि दुकान कब खुलेगी।": (0, 1, 3, 2, 1),
    # compound postpositions, and words that are such only after a genitive
    "चुनाव के बाद दल के नेता जनता के सामने आए।": (5, 0, 1, 1, 0),
    "बाद में वह ऊपर गया और पास बैठ गया।": (1, 0, 3, 2, 1),
    "वह अध्यक्ष के रूप में काम करता है।": (3, 0, 2, 0, 0),
    "हमें नियमों के बारे में बताया गया।": (3, 1, 2, 2, 0),
    "दो साल पहले शहर के पास नदी की ओर सड़क थी।": (5, 0, 1, 1, 0),
    "मंत्री के अनुसार सेना के खिलाफ कोई आरोप नहीं है।": (4, 0, 1, 0, 0),
    "पुलिस द्वारा तीन लोग पकड़े गए।": (1, 0, 2, 2, 0),
    "कम से कम पाँच लोग घायल हुए।": (0, 0, 1, 1, 0),
    "बहुत से लोग सुबह से शाम तक काम करते हैं।": (2, 0, 2, 0, 0),
    # after a verb it marks a clause, not a case
    "वह पढ़ने के लिए शहर जाने को तैयार है।": (0, 0, 3, 0, 0),
    "पैसे देने से पहले कागज देख लेना चाहिए।": (0, 0, 4, 0, 1),
    "शहर में रहने वाले लोग बिजली के आने का इंतजार करते रहे।": (2, 0, 4, 1, 0),
    # participles, passives, mood
    "लिखी हुई चिट्ठी उसने जलते हुए दीये के पास रखी।": (2, 1, 5, 2, 0),
    "कहा जाता है कि यहाँ सोने की खान थी।": (1, 0, 4, 2, 0),
    "अगर बारिश हो तो फसल अच्छी हो जाए।": (0, 0, 3, 2, 1),
    "आप यह काम आज ही कर दीजिए।": (0, 0, 2, 0, 1),
    "यह बात मान ली जाए तो विवाद खत्म हो जाएगा।": (0, 0, 5, 3, 2),
    "वह रात भर जागता रहा और गाता रहा।": (0, 0, 4, 2, 0),
    "मुझे हिंदी आती है, किसे नहीं आती?": (0, 2, 3, 0, 0),
    "राम का साथ और उनका साथ अलग बातें हैं, अपने पर भरोसा था।": (2, 1, 2, 1, 0),
    "कहीं बारिश हुई, कहीं धरती प्यासी रही।": (0, 0, 2, 2, 0),
    "बैंक में उसका खाता नहीं खुला।": (1, 1, 1, 1, 0),
    "वह रोज चावल खाता है।": (0, 0, 2, 0, 0),
    "इस बारे में सभापति (कुलपति) ने कुछ नहीं कहा।": (2, 0, 1, 1, 0),
    "भारत के पूर्व प्रधानमंत्री शनिवार से पहले लौटेंगे।": (3, 0, 1, 1, 0),
    "छात्रों की तरह शिक्षक भी बस से लेकर रेल तक हर साधन पर निर्भर हैं।": (6, 0, 1, 0, 0),
    "दूर से गाड़ी दिखाई दी और शोर सुनाई पड़ा।": (1, 0, 4, 2, 0),
    # a noun before giving and taking, and the verb of the same stem
    "माली ने रानी को लाल फूल दिए।": (2, 0, 1, 1, 0),
    "माली बाजार से फूल ले आएगा।": (1, 0, 2, 1, 0),
    "बरसात में आटा फूल जाता है।": (1, 0, 3, 0, 1),
    "मजदूर ने दो काम सीख लिए और गाँव चल दिया।": (1, 0, 4, 2, 2),
    "पुलिस ने ट्रक को रोक दिया।": (2, 0, 2, 1, 1),
    "प्रदर्शन पर रोक के बाद भी यह मांग रखी गई।": (3, 0, 2, 2, 0),
    "बच्चा जोर से चीख पड़ा, और उसकी चीख निकल गई।": (1, 1, 4, 2, 2),
    "हमने बहुत सोच कर घर बेचा।": (0, 1, 3, 1, 0),
    "अब मुझे बात समझ आई।": (0, 1, 1, 1, 0),
    # a passive whose participle is spelt like the stem of a causative, and such a stem with its light verb
    "समारोह में कविता पढ़ी गई और गीत सुना गया।": (1, 0, 4, 4, 0),
    "यह उपन्यास जेल में लिखा गया था।": (1, 0, 3, 3, 0),
    "ऐसा संदेश रोज पढ़ा जाता है।": (0, 0, 3, 1, 0),
    "यह नियम आसानी से समझा जा सकता है।": (1, 0, 4, 1, 0),
    "चोर रात को पकड़ा गया।": (1, 0, 2, 2, 0),
    "दादी हमें एक कहानी सुना गईं।": (0, 1, 2, 1, 1),
    "उसने मुझे पूरी चिट्ठी पढ़ा दी।": (0, 2, 2, 1, 1),
    "आंधी सारे दीपक बुझा गई।": (0, 0, 2, 1, 1),
    "बीमार से दवा नहीं पी गई।": (1, 0, 2, 2, 0),
    "यहाँ कॉफी कम पी जाती है।": (0, 0, 3, 1, 0),
    "बिल्ली सारा दूध पी गई।": (0, 0, 2, 1, 1),
    "वह चला गया और उसकी बहन भी चली गई।": (0, 1, 4, 2, 0),
    # eating after its object is a verb; food and a ditch are nouns
    "सेब खाने के बाद बच्चे सो गए।": (0, 0, 3, 1, 1),
    "ठंडे केले खाने से गला बैठ गया।": (0, 0, 3, 1, 1),
    "ताजा खाने के लिए लोग कतार में खड़े थे।": (3, 0, 1, 1, 0),
    # having to: the doer is a dative, in one word or two
    "कल आपको जल्दी सोना है।": (0, 1, 2, 0, 0),
    "मेहमान को चार केले खाने पड़े।": (1, 0, 2, 1, 0),
    # negated, the habitual has no auxiliary; a posture is a participle
    "दादा मिर्च नहीं खाते, बहनें खटाई नहीं खातीं और कोई दही नहीं खाता।": (0, 0, 3, 0, 0),
    "बिल्ली छत पर बैठी हुई थी और चूहा नीचे लेटा है।": (1, 0, 5, 3, 0),
    "नानी ने जलेबी खाई, फिर चाय पी।": (1, 0, 2, 2, 0),
    "जो रोटी मजदूर ने खाई और जो पानी उसने पिया, वह मेरा था।": (1, 2, 3, 3, 0),
    "सेना ने एक खाई और दो टीले पार किए।": (1, 0, 1, 1, 0),
    # pronouns with their marker apart
    "उस ने हम को सब बताया।": (2, 0, 1, 1, 0),
    "जिसने जिसको देखा, उसका नाम इसमें लिखा है।": (0, 4, 3, 2, 0),
    # a word alone, a marker without its nasal, another script
    "में": (1, 0, 0, 0, 0),
    "है": (0, 0, 1, 0, 0),
    "मुझे": (0, 1, 0, 0, 0),
    "पानी": (0, 0, 0, 0, 0),
    "वह घर मे है": (0, 0, 1, 0, 0),
    "The doctor said that the hospital is open.": (0, 0, 0, 0, 0),
}
HINDI = "\n".join(GOLD)


@pytest.mark.parametrize("sentence", GOLD)
def test_counts_agree_with_the_hand_count(sentence):
    assert count_morphology(sentence)[1:] == GOLD[sentence]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("वह पढ़ता है", "वह पढता है"),
        ("ज़रूर फ़ोन करूँगा", "जरूर फोन करूंगा"),
        ("मैं गाँव में हूँ", "मैं गांव में हूं"),
        ("वे आये, गये और सो गये", "वे आए, गए और सो गए"),
        ("चिट्ठी भेजी गयी", "चिट्ठी भेजी गई"),
        ("उसके लिये काम होना चाहिये", "उसके लिए काम होना चाहिए"),
        ("वे जायेंगे और हम भी जायें", "वे जाएंगे और हम भी जाएं"),
        ("खम्भे को सम्भाला", "खंभे को संभाला"),
        ("मैने कहा, उन्होने सुना", "मैंने कहा, उन्होंने सुना"),
        ("क\u094d\u200dया उसने का\u200cम किया", "क\u094dया उसने काम किया"),
    ],
)
def test_spelling_variants_count_alike(one, other):
    assert count_morphology(one) == count_morphology(other)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        (" \n\t ", []),
        ("। ॥ | , … “ ” — - *", []),
        ("नमस्ते", ["नमस्ते"]),
        ("“राम,” उसने कहा।", ["राम", "उसने", "कहा"]),
        ("वायु-सेना के ७५ विमान", ["वायु", "सेना", "के", "७५", "विमान"]),
        ("2.5 फीसदी, १२,८२५ करोड़", ["2.5", "फीसदी", "१२,८२५", "करोड\u093c"]),
        ("The cat's __hat__ isn't 10:30", ["The", "cat's", "hat", "isn't", "10:30"]),
        ("अतः ज़रा", ["अतः", "ज\u093cरा"]),
        ("猫 sitzt. Ça va", ["猫", "sitzt", "Ça", "va"]),
    ],
)
def test_words_are_runs_of_letters_marks_and_digits(text, words):
    assert words_of(text) == words
    assert count_morphology(text).words == len(words)


@pytest.mark.parametrize("particles", [0, 1, 6, 10])
def test_particles_between_a_participle_and_its_auxiliary_change_nothing(particles):
    plain = count_morphology("गाना सुना गया")
    counts = count_morphology("गाना सुना " + "ही " * particles + "गया")
    assert (counts.verbs, counts.inflections) == (plain.verbs, plain.inflections)


PIECES = sorted({word for sentence in GOLD for word in sentence.split()})
hindi_texts = st.lists(st.sampled_from(PIECES), max_size=25).map(" ".join)
any_texts = st.one_of(st.text(), hindi_texts, st.text(alphabet=sorted(set(HINDI)) + list("()-'\"\u200d़़ं")))


@given(any_texts)
def test_every_text_has_counts_between_zero_and_its_words(text):
    counts = count_morphology(text)
    assert all(count >= 0 for count in counts), counts
    assert counts.words == len(words_of(text))
    assert counts.verbs + counts.case_markers + counts.fused_cases <= counts.words, counts
    assert counts.compounds <= counts.verbs


@given(any_texts)
def test_composed_and_decomposed_text_count_alike(text):
    assert count_morphology(unicodedata.normalize("NFD", text)) == count_morphology(unicodedata.normalize("NFC", text))


@given(hindi_texts)
def test_nukta_does_not_change_a_count(text):
    assert count_morphology(unicodedata.normalize("NFD", text).replace("\u093c", "")) == count_morphology(text)


@given(any_texts, st.sampled_from([" ", "\t", "“", "(", "- ", "‘", "… ", "\u00a0"]), st.sampled_from(" ।.,…”’)—\n"))
def test_punctuation_and_space_around_a_text_change_nothing(text, before, after):
    assert count_morphology(f"{before}{text} {after}") == count_morphology(text)


@given(any_texts, any_texts, st.sampled_from([" । ", "\n", "।", " ॥ "]))
def test_counts_add_up_over_sentences(one, other, separator):
    parts = zip(count_morphology(one), count_morphology(other))
    assert count_morphology(one + separator + other) == MorphologyCounts(*(a + b for a, b in parts))


@given(hindi_texts)
def test_quotation_marks_and_glued_punctuation_change_nothing(text):
    quoted = " ".join(f"“{word}”" for word in text.split())
    assert count_morphology(re.sub(r"\s+", "  ", quoted)) == count_morphology(text)


def test_a_line_without_full_stops_costs_no_more_than_its_length():
    started = time.process_time()
    count_morphology("उस ) की ही सोना है " * 20_000)
    assert time.process_time() - started < 10


def test_twenty_thousand_sentences_take_two_seconds_of_one_core():
    sentences = [" ".join(PIECES[(7 * start + step) % len(PIECES)] for step in range(15)) for start in range(4_000)]
    started = time.process_time()
    for text in sentences:
        count_morphology(text)
    assert (time.process_time() - started) * 5 < 2.0 * 3, "three times the 2 s budget: leaves room for slow machines"


def test_every_list_of_words_is_looked_up_by_its_name():
    rules = "".join(Path(str(module.__file__)).read_text(encoding="utf-8") for module in (sentence, tables, verbs))
    assert set(tables.WORDS) <= set(re.findall(r'"(\w+)"', rules))
    assert set(re.findall(r'WORDS\["(\w+)"\]', rules)) <= set(tables.WORDS)
