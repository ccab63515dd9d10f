{{/*
Templates that both charts have: tests/chart/test_shared_templates.py compares the two files.
*/}}

{{/* The address of the node's metadata service if a CIDR contains it, else nothing. Takes the CIDR. Compares the bits of
     the prefix, group by group. */}}
{{- define "paddle.metadataIn" -}}
{{- $parts := splitList "/" . -}}
{{- $length := last $parts | int64 -}}
{{- $isIpv6 := contains ":" . -}}
{{- $groups := list -}}
{{- if $isIpv6 -}}
{{- $halves := splitList "::" (first $parts) -}}
{{- $left := first $halves | splitList ":" | compact -}}
{{- $right := rest $halves | join "" | splitList ":" | compact -}}
{{- $zeros := list -}}
{{- range until (sub 8 (add (len $left) (len $right)) | max 0 | int) -}}{{- $zeros = append $zeros "0" -}}{{- end -}}
{{- range concat $left $zeros $right -}}{{- $groups = append $groups (printf "0x%s" . | int64) -}}{{- end -}}
{{- else -}}
{{- range splitList "." (first $parts) -}}{{- $groups = append $groups (regexReplaceAll "^0+(.)" . "${1}" | int64) -}}{{- end -}}
{{- end -}}
{{- $width := ternary 16 8 $isIpv6 -}}
{{- $isInside := true -}}
{{- range $i, $group := ternary (list 0xfd00 0x0ec2 0 0 0 0 0 0x0254) (list 169 254 169 254) $isIpv6 -}}
{{- $size := 1 -}}
{{- range until (sub $width (sub $length (mul $i $width) | max 0 | min $width) | int) -}}{{- $size = mul $size 2 -}}{{- end -}}
{{- if ne (div (index $groups $i) $size) (div $group $size) -}}{{- $isInside = false -}}{{- end -}}
{{- end -}}
{{- if $isInside -}}{{ ternary "fd00:ec2::254/128" "169.254.169.254/32" $isIpv6 }}{{- end -}}
{{- end -}}

{{/* CIDRs as peers of a rule, without the node's metadata service, which returns the credentials of the node's role. */}}
{{- define "paddle.blocks" -}}
{{- range . }}
- ipBlock:
    cidr: {{ . | quote }}
    {{- with include "paddle.metadataIn" . }}
    except: [{{ . | quote }}]
    {{- end }}
{{- end }}
{{- end -}}

{{/* Whether a variable or option holds a secret: "true" or "false". By its name: passwords, tokens, keys, credentials; not
     settings about them (TOKENIZERS_PARALLELISM, MAX_TOKENS, SECRET_NAME, …_TOKEN_FILE). By its value: addresses of
     webhooks, and "paddle.hasSecret". A reference to another variable, $(NAME), is no secret. Takes (list <name> <value>). */}}
{{- define "paddle.isSecret" -}}
{{- $name := regexReplaceAll "([a-z0-9])([A-Z])" (index . 0) "${1}_${2}" | upper | replace "-" "_" | replace "." "_" -}}
{{- $value := regexReplaceAll "\\$\\([A-Za-z0-9_.-]+\\)" (index . 1 | toString) "" -}}
{{- $about := regexMatch "_(ARN|COLUMN|COUNT|DIM|DIR|ENABLED|ENDPOINT|ENV|FIELD|FILE|HEADER|HELPER|HOST|IDS|INDEX|LEN|LENGTH|LIMIT|MODE|NAME|PATH|PORT|PROVIDER|REGION|REQUIRED|SECONDS|SERVER|SIZE|TIMEOUT|TTL|TYPE|URI|URL|VAR|VERSION)$" $name -}}
{{- $isSwitch := regexMatch "(?i)^(|true|false|yes|no|on|off|none|null|[a-z]+_id)$" $value -}}
{{- $isSetting := or $isSwitch (regexMatch "^([0-9.eE+-]+|[<\\[].*[>\\]]|[^A-Za-z0-9]+)$" $value) -}}
{{- $isPath := regexMatch "^(/[A-Za-z0-9._-]+)+/?$" $value -}}
{{- $key := "(ACCESS|ACCOUNT|ADMIN|AES|ANTHROPIC|API|APP|AUTH|AZURE|CLIENT|CONSUMER|DEPLOY|ENCRYPTION|HMAC|JWT|KAGGLE|LICENSE|MASTER|OPENAI|PRIVATE|RSA|SECRET|SERVICE|SESSION|SHARED|SIGNING|SSH|STORAGE|SUBSCRIPTION|WANDB|WEBHOOK)_?KEY" -}}
{{- $token := and (regexMatch "TOKEN(_|$)|(ACCESS|API|AUTH|BEARER|REFRESH)_?TOKENS(_|$)" $name) (not (regexMatch "(^|_)TIKTOKEN|(^|_)(BOS|CLASS|CLS|END|EOS|IMAGE|MASK|MAX|MIN|NUM|PAD|PER|SEP|SEPARATOR|SPECIAL|START|STOP|UNK)_TOKEN|TOKEN_ID$|TOKEN_(CLASS|DROP|EMBED|LABEL|LEVEL|LOSS|MASK|MERG|MIX|POOL|PRUN|TYPE)" $name)) -}}
{{- or (and (regexMatch (printf "PASSWORD|PASSWD|PASSPHRASE|SECRET|%s(S|ID)?(_|$)" $key) $name) (not $about) (not $isSwitch))
  (and (regexMatch "CREDENTIAL" $name) (not $about) (not $isSwitch) (not $isPath))
  (and $token (not $about) (not $isSetting))
  (and (regexMatch "(^|_)(AUTH|AUTHORIZATION|COOKIE|(DB|PG|SMTP|SQL)?PASS|PAT|PW|PWD)$" $name) (not $isSetting) (not $isPath) (not (regexMatch "^[a-z]+$" $value)))
  (and (regexMatch "(^|_)KEY$" $name) (regexMatch "^[A-Za-z0-9]{20,}=*$" $value) (regexMatch "[0-9]" $value))
  (regexMatch "(?i)https://(hooks\\.slack\\.com|[^\\s?#]*/(web)?hook(s|b2)?)/\\S" $value)
  (eq (include "paddle.hasSecret" $value) "true") -}}
{{- end -}}

{{/* Whether a text contains a secret: "true" or "false": a password or token in an address, a signed address, a connection
     string, a header with credentials, a private key, or a well-known token. Takes the text. */}}
{{- define "paddle.hasSecret" -}}
{{- or (regexMatch "://[^/@\\s]*:[^/@\\s]+@|(?i)https?://[^/@\\s]+@" .)
  (eq (include "paddle.isSignedUrl" .) "true")
  (regexMatch "(?i)(^|[?&;:\\s])[a-z.-]*(AccountKey|SharedAccessKey|SharedAccessSignature|Password|Pwd|_authToken)=[^;\\s]" .)
  (regexMatch "(?i)\\bauthorization[\"']?\\s*[:=]\\s*[\"']?(aws4|basic|bearer|digest|token)|^(basic|bearer) [a-z0-9+/=._-]{12}" .)
  (regexMatch "-----BEGIN [A-Z ]*PRIVATE KEY" .)
  (regexMatch "\\b((AKIA|ASIA)[0-9A-Z]{16}\\b|(gh[opsur]_|github_pat_|glpat-|hf_|xox[abeoprs]-|sk-|sk_live_|dckr_pat_|npm_|AIza|ya29\\.)[A-Za-z0-9_-]*[A-Za-z0-9]{16}|eyJ[A-Za-z0-9_-]{10,}\\.[A-Za-z0-9_-]{10,}\\.)" .) -}}
{{- end -}}

{{/* Whether a web address is signed or has a token in its query: "true" or "false". Takes the address. */}}
{{- define "paddle.isSignedUrl" -}}
{{- $word := "(signature|(auth|access|bearer|download|sas)?token|(client|app)?secret|password|passwd|passphrase|credentials?|(api|access|auth|private|subscription|account)[-_]?key([-_]?id)?)" -}}
{{- regexMatch (printf "(?i)^https?://[^?#]*[?#](.*[&;~])?(([^=&#]*[-_.])?%s|[a-z]*accesskeyid|googleaccessid|sig|sign|hmac|jwt|auth|authorization)=[^&#]" $word) . -}}
{{- end -}}
